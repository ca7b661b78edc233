#include "troika/train/run/run_summary.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "troika/base/text.h"
#include "troika/comm/group.h"
#include "troika/compat/torch.h"

namespace troika::train {

namespace {

constexpr size_t kMostMetrics = 8;

std::string largest(const std::vector<int64_t>& bytes) {
  return human_bytes(static_cast<double>(*std::max_element(bytes.begin(), bytes.end())));
}

std::string memory_text(const observe::RunSummary& summary) {
  const auto resident = "resident " + largest(summary.peak_resident_bytes) + " a process";
  if (summary.peak_tensor_bytes.empty()) return resident;  // no step was made
  const auto& predicted = summary.predicted_tensor_bytes;
  return fmt::format("{} ({}) in training steps, {}", largest(summary.peak_tensor_bytes),
                     predicted.empty() ? "not predicted" : "predicted " + largest(predicted),
                     resident);
}

// The idle share of each rank of a pipeline, or of the least and the most idle one.
std::string bubble_text(const std::vector<double>& bubble) {
  std::vector<std::string> shares;
  for (const double share : bubble) shares.push_back(fmt::format("{:.1f} %", 100 * share));
  if (shares.size() <= kMostMetrics) {
    return fmt::format("{} of the passes' time on each rank", fmt::join(shares, ", "));
  }
  const auto [least, most] = std::ranges::minmax(bubble);
  return fmt::format("{:.1f} % to {:.1f} % of the passes' time", 100 * least, 100 * most);
}

std::string line_of(const std::string& name, const std::string& value) {
  return fmt::format("\n  {:<20} {}", name, value);
}

std::string how_to_resume(const observe::RunSummary& summary, const TrainOptions& options) {
  if (!options.model.name.empty() && !options.data.name.empty()) {
    return fmt::format("troika train {}/config.toml --trainer.ckpt_path=last", summary.run_folder);
  }
  return fmt::format("start the program with run.name = \"{}\" and trainer.ckpt_path = \"last\"",
                     summary.name);
}

}  // namespace

std::string describe(const observe::RunSummary& summary, const TrainOptions& options) {
  std::string text = fmt::format(
      "{} {}: {} steps on {} process{} in {}", summary.name, summary.status, summary.steps,
      summary.world_size, summary.world_size == 1 ? "" : "es", human_seconds(summary.seconds));
  const auto line = [&](const std::string& name, const std::string& value) {
    text += line_of(name, value);
  };
  const auto& metrics = summary.metrics;
  if (metrics.contains(observe::kEpochLoss))
    line("train loss", human_number(summary.train_loss, 4));
  if (metrics.contains(observe::kValidationLoss)) {
    line("validation loss", human_number(summary.validation_loss, 4));
  }
  if (metrics.contains(observe::kValidationAccuracy)) {
    line("validation accuracy", human_number(100 * summary.validation_accuracy, 2) + " %");
  }
  size_t more = 0;  // statistics of every parameter would make too long a list
  for (const auto& [name, value] : metrics) {
    if (name == observe::kValidationLoss || name == observe::kValidationAccuracy ||
        name.starts_with("train/")) {
      continue;
    }
    if (more++ < kMostMetrics) line(name, human_number(value, 4));
  }
  if (more > kMostMetrics) {
    line("more metrics", fmt::format("{}, in the logs", more - kMostMetrics));
  }
  if (summary.steps > 0 && !std::isnan(summary.median_step_milliseconds)) {
    line("throughput", fmt::format("{:.1f} samples/s, median step {:.1f} ms",
                                   summary.samples_per_second, summary.median_step_milliseconds));
  }
  if (!summary.bubble.empty()) line("bubble", bubble_text(summary.bubble));
  line("peak memory", memory_text(summary));
  if (!summary.checkpoint.empty()) line("checkpoint", summary.checkpoint);
  if (!summary.best_checkpoint.empty()) {
    line("best checkpoint",
         fmt::format("{} by {}", summary.best_checkpoint, options.checkpoint.monitor));
  }
  line("metrics and logs", summary.run_folder);
  if (summary.status == "stopped") line("to resume", how_to_resume(summary, options));
  return text;
}

std::string describe(RunMode mode, const observe::MetricValues& metrics) {
  auto text = fmt::format("{} finished", run_mode_name(mode));
  for (const auto& [name, value] : metrics) text += line_of(name, human_number(value, 4));
  return text;
}

observe::RunSummary empty_summary(const TrainOptions& options, const comm::Group& group,
                                  const std::filesystem::path& folder, const std::string& status) {
  observe::RunSummary summary;
  summary.name = options.run.name;
  summary.status = status;
  summary.world_size = group.size();
  summary.torch_version = compat::torch_version();
  summary.run_folder = folder.string();
  return summary;
}

}  // namespace troika::train
