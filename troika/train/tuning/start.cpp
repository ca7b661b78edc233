#include "troika/train/tuning/start.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "troika/base/benchmark_record.h"
#include "troika/base/clock.h"
#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/checkpoint/checkpoint.h"
#include "troika/checkpoint/resume.h"
#include "troika/compat/torch.h"
#include "troika/train/options/checkpoint_options.h"
#include "troika/train/options/limits.h"
#include "troika/train/options/resolve_plan.h"
#include "troika/train/tuning/tuning.h"

namespace troika::train {

namespace {

std::string times_text(const TuningEntry& entry) {
  std::vector<std::string> texts;
  for (const auto& candidate : entry.candidates) {
    texts.push_back(fmt::format("{} {:.3g} ms", candidate.name, candidate.seconds * 1e3));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

}  // namespace

int replicas_of(const RunStart& run) {
  return resolve_plan(run.options, cluster_of(run.group)).mesh.sample_shares();
}

int64_t batch_of(const RunStart& run) {
  const int replicas = replicas_of(run);
  return (global_batch(run.options, replicas) + replicas - 1) / replicas;
}

bool is_worth_timing(const RunStart& run) {
  const auto& trainer = run.options.trainer;
  constexpr auto kMany = std::numeric_limits<int64_t>::max();
  const int64_t of_an_epoch = run.dataset.size() / global_batch(run.options, replicas_of(run));
  const int64_t of_epochs = trainer.max_epochs < 0 ? kMany : trainer.max_epochs * of_an_epoch;
  const int64_t micro_batches =
      trainer.max_steps < 0 ? of_epochs : std::min(of_epochs, trainer.max_steps);
  return micro_batches >= kMicroBatchesWorthTiming;
}

void say(const RunStart& run, const StartChoice& choice, const std::string& taken,
         const std::string& why) {
  if (run.group.rank() != 0 || !run.options.trainer.enable_model_summary) return;
  log::info("{}: {}, {} ({})", choice.subject, taken, why, choice.option);
}

bool takes_rule(const RunStart& run, const StartChoice& choice) {
  const auto& trainer = run.options.trainer;
  if (trainer.benchmark && !trainer.deterministic) return false;
  say(run, choice, choice.names.front(),
      trainer.deterministic ? "by its default, as trainer.deterministic times nothing"
                            : "by its default, without trainer.benchmark");
  return true;
}

std::string timed(const RunStart& run, const StartChoice& choice, double margin) {
  const TuningQuestion question{.what = choice.what,
                                .cpu = cpu_model(),
                                .libtorch = compat::torch_version(),
                                .threads = at::get_num_threads()};
  const Stopwatch watch;
  const auto entry =
      fastest(run.group, TuningFile::of_user(), question, choice.names, choice.time, margin);
  say(run, choice, entry.choice,
      entry.candidates.empty()
          ? std::string("as timed before (troika doctor --tuning)")
          : fmt::format("the fastest, timed in {:.2f} s: {}", watch.seconds(), times_text(entry)));
  return entry.choice;
}

std::string choice_of_checkpoint(const RunStart& run, std::string (*of)(const TrainOptions&)) {
  const auto& path = run.options.trainer.ckpt_path;
  if (path.empty()) return {};
  std::string saved;
  if (run.group.rank() == 0) {
    try {
      const auto found = checkpoint::find_checkpoint(run.folder / "checkpoints", path);
      if (!found.empty()) saved = of(read_checkpoint_options(found));
    } catch (const Error&) {
      // fit() reports the error later
    }
  }
  return run.group.broadcast_text(saved, 0, "choice of the checkpoint");
}

}  // namespace troika::train
