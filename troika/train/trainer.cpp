#include "troika/train/trainer.h"

#include <optional>
#include <utility>

#include "troika/base/file.h"
#include "troika/base/log.h"
#include "troika/compat/torch.h"
#include "troika/train/callbacks/callbacks.h"
#include "troika/train/fit.h"
#include "troika/train/limits.h"

namespace troika::train {

namespace {

// What went wrong before matters more than that this file cannot be written.
void try_to_write(const std::filesystem::path& file, const RunSummary& summary) {
  try {
    write_summary(file, summary);
  } catch (const std::exception& problem) {
    log::error("no summary of the failed run: {}", problem.what());
  }
}

}  // namespace

RunSummary bare_summary(const TrainOptions& options, const comm::Group& group,
                        const std::filesystem::path& folder, const std::string& status) {
  RunSummary summary;
  summary.name = options.run.name;
  summary.status = status;
  summary.world_size = group.size();
  summary.torch_version = compat::torch_version();
  summary.run_folder = folder.string();
  return summary;
}

int64_t global_batch(const TrainOptions& options, int ranks) {
  const int64_t whole = options.data.global_batch_size;
  return whole > 0 ? whole : options.data.batch_size * ranks;
}

Trainer::Trainer(TrainOptions options, comm::Group group)
    : options_(with_fast_dev_run(std::move(options))), group_(std::move(group)) {}

std::filesystem::path Trainer::folder() const {
  return std::filesystem::path(options_.run.folder) / options_.run.name;
}

RunSummary Trainer::fit(Task& task, const data::Dataset& training,
                        const data::Dataset& validation) {
  const bool is_main = group_.rank() == 0;
  const auto summary_file = folder() / "summary.json";
  std::optional<Fit> fit;
  try {
    if (is_main) {
      // An earlier run of this name must not speak for this one.
      for (const auto& file : {summary_file, folder() / "trace.json", folder() / "report.html"}) {
        std::filesystem::remove(file);
      }
      write_file_atomically(folder() / "config.toml", make_table(options_).to_toml());
    }
    Callbacks callbacks = make_callbacks(options_);
    callbacks.insert(callbacks.end(), callbacks_.begin(), callbacks_.end());
    fit.emplace(options_, group_, folder(), task, training, validation, question_,
                std::move(callbacks));
    try {
      stopped_by_ = fit->run();
    } catch (const std::exception& problem) {
      fit->tell(problem);
      throw;
    }
    RunSummary summary =
        fit->summary(stopped_by_ == cluster::StopRequest::none ? "finished" : "stopped");
    summary.phase_milliseconds = fit->phase_times();
    const auto peaks = at::empty({group_.size(), 1}, at::kLong);
    group_.all_gather(peaks, at::full({1}, peak_resident_bytes(), at::kLong), {},
                      {.label = "peak memory"});
    for (int r = 0; r < group_.size(); ++r) {
      summary.peak_resident_bytes.push_back(peaks[r].item<int64_t>());
    }
    if (is_main) write_summary(summary_file, summary);
    return summary;
  } catch (...) {
    if (is_main) {
      try_to_write(summary_file, fit ? fit->summary("failed")
                                     : bare_summary(options_, group_, folder(), "failed"));
    }
    throw;
  }
}

}  // namespace troika::train
