#include "troika/layout/schedules/stage_weights.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "troika/base/error.h"

namespace troika::layout {

namespace {

constexpr std::array<std::pair<std::string_view, StageWeights>, 4> kSchedules{
    {{"pipedream", StageWeights::stashed},
     {"pipedream-unstashed", StageWeights::unstashed},
     {"pipedream-vertical-sync", StageWeights::vertical_sync},
     {"pipedream-2bw", StageWeights::double_buffered}}};

constexpr std::array<std::pair<std::string_view, WarmUp>, 2> kWarmUps{
    {{"runtime", WarmUp::runtime}, {"noam", WarmUp::noam}}};

int64_t steps(int64_t numerator, int64_t micro_batches) {
  return std::max<int64_t>(0, numerator) / micro_batches;
}

}  // namespace

std::vector<std::string> asynchronous_schedule_names() {
  std::vector<std::string> names;
  for (const auto& [name, weights] : kSchedules) names.emplace_back(name);
  return names;
}

std::string_view asynchronous_schedule_name(StageWeights wanted) {
  for (const auto& [name, weights] : kSchedules) {
    if (weights == wanted) return name;
  }
  TROIKA_CHECK(false, "weights of a schedule without flushes");
}

StageWeights weights_of_schedule(std::string_view wanted) {
  for (const auto& [name, weights] : kSchedules) {
    if (name == wanted) return weights;
  }
  return StageWeights::synchronous;
}

std::vector<std::string> warm_up_names() {
  std::vector<std::string> names;
  for (const auto& [name, rule] : kWarmUps) names.emplace_back(name);
  return names;
}

WarmUp warm_up_of(std::string_view wanted) {
  for (const auto& [name, rule] : kWarmUps) {
    if (name == wanted) return rule;
  }
  TROIKA_CHECK(false, "the name of a warm-up");
}

// Before a forward pass, a replica has run its backward passes of all but the last `warm_up`
// micro-batches before it, and waits for the steps that they complete on all replicas.
int64_t AsynchronousStage::version(int64_t micro_batch) const {
  switch (weights) {
    case StageWeights::synchronous:
      return steps(micro_batch, micro_batches);
    case StageWeights::stashed:
    case StageWeights::unstashed:
      return steps(micro_batch - warm_up, micro_batches);
    case StageWeights::vertical_sync:
      return steps(micro_batch - first_warm_up, micro_batches);
    case StageWeights::double_buffered:
      return std::max<int64_t>(0, micro_batch / micro_batches - 1);
  }
  TROIKA_CHECK(false, "weights of a known kind");
}

// After the step that ends with micro-batch b, the newest version is (b + 1) / micro_batches, and
// the oldest that is still used is that of micro-batch b + 1.
int64_t AsynchronousStage::most_versions() const {
  const int64_t delay = weights == StageWeights::vertical_sync ? first_warm_up : warm_up;
  switch (weights) {
    case StageWeights::synchronous:
    case StageWeights::unstashed:
      return 1;
    case StageWeights::double_buffered:
      return 2;
    default:
      return 1 + (delay + micro_batches - 1) / micro_batches;
  }
}

int64_t AsynchronousPipeline::warm_up(int stage) const {
  int64_t before = 0, ranks = 0;
  for (int s = 0; s < stages; ++s) {
    if (s < stage) before += replicas_of(s);
    ranks += replicas_of(s);
  }
  const int64_t own = replicas_of(stage), first = replicas_of(0);
  const bool by_noam = warm_up_by == WarmUp::noam && stage + 1 < stages;
  const int64_t admitted = by_noam ? (ranks + first - 1) / first * first : ranks;
  return in_flight * ((admitted - before - 1) / own) * own;
}

int64_t AsynchronousPipeline::least_micro_batches() const {
  int64_t least = 1;
  for (int s = 0; s < stages; ++s) {
    const int64_t own = replicas_of(s);
    if (weights == StageWeights::double_buffered) {
      least = std::max(least, warm_up(s) + in_flight * own);
    } else {
      least = steps_by_replicas ? std::lcm(least, own) : std::max(least, own);
    }
  }
  return least;
}

int64_t AsynchronousPipeline::most_ahead() const {
  return (warm_up(0) + micro_batches - 1) / micro_batches * micro_batches;
}

AsynchronousStage asynchronous_stage(const AsynchronousPipeline& pipeline, int stage) {
  const int own = pipeline.replicas_of(stage);
  AsynchronousStage result{
      .weights = pipeline.stages == 1 ? StageWeights::stashed : pipeline.weights,
      .micro_batches = pipeline.micro_batches,
      .warm_up = pipeline.warm_up(stage),
      .first_warm_up = pipeline.warm_up(0),
      .replicas = own};
  if (!pipeline.steps_by_replicas) return result;
  result.micro_batches = own;
  result.learning_rate_factor = static_cast<double>(own) / pipeline.replicas_of(0);
  return result;
}

}  // namespace troika::layout
