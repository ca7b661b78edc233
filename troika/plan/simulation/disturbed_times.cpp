#include "troika/plan/simulation/disturbed_times.h"

#include <algorithm>
#include <cmath>

#include "troika/base/random.h"

namespace troika::plan {

using layout::ActionKind;

namespace {

constexpr uint64_t kStragglerDraw = 1, kJitterDraw = 2;

// By device: the rate of the device whose times the stages have, divided by its own; 1 if a rate is
// unknown.
std::vector<double> slowness(const SimulatedRun& run) {
  const auto& devices = run.cluster.devices;
  double reference = run.reference_flops;
  if (reference == 0) reference = std::ranges::max(devices, {}, &layout::Devices::flops).flops;
  const bool is_known = std::ranges::all_of(devices, [](const auto& row) { return row.flops > 0; });
  std::vector<double> factors;
  for (const auto& row : devices) {
    factors.insert(factors.end(), static_cast<size_t>(row.count),
                   is_known ? reference / row.flops : 1);
  }
  return factors;
}

}  // namespace

DisturbedTimes::DisturbedTimes(const SimulatedRun& run) : run_(run), factors_(slowness(run)) {
  const auto& disturbances = run.disturbances;
  for (size_t rank = 0; rank < factors_.size(); ++rank) {
    Random random(mix(disturbances.seed, kStragglerDraw, rank));
    if (random.uniform() < disturbances.straggler_share) {
      factors_[rank] *= disturbances.straggler_factor;
    }
  }
  for (const auto& [rank, factor] : disturbances.slow_ranks) {
    factors_[static_cast<size_t>(rank)] *= factor;
  }
}

double DisturbedTimes::stage_seconds(const layout::Action& pass) const {
  const auto& stages = run_.stages;
  const auto& times = stages[stages.size() == 1 ? 0 : static_cast<size_t>(pass.stage)].passes;
  switch (pass.kind) {
    case ActionKind::forward:
      return times.forward;
    case ActionKind::backward:
      return times.backward();
    case ActionKind::backward_input:
      return times.backward_input;
    default:
      return times.backward_weight;
  }
}

double DisturbedTimes::seconds(int rank, int step, size_t item, const ProgramItem& passes) const {
  double seconds = stage_seconds(passes.action);
  if (passes.beside) seconds += stage_seconds(*passes.beside);
  const double jitter = run_.disturbances.jitter;
  if (jitter > 0) {
    const uint64_t pass = static_cast<uint64_t>(step) << 32 | item;
    const uint64_t key = mix(run_.disturbances.seed, kJitterDraw, static_cast<uint64_t>(rank));
    const double variance = std::log1p(jitter * jitter);
    seconds *= std::exp(std::sqrt(variance) * Random(mix(key, pass)).normal() - variance / 2);
  }
  return seconds * factor(rank);
}

}  // namespace troika::plan
