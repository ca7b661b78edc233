#include "troika/plan/simulation/disturbed_times.h"

#include <cmath>

#include "troika/base/random.h"
#include "troika/layout/device_rates.h"

namespace troika::plan {

namespace {

constexpr uint64_t kStragglerDraw = 1, kJitterDraw = 2;

}  // namespace

DisturbedTimes::DisturbedTimes(const SimulatedRun& run)
    : run_(run), factors_(layout::device_slowness(run.cluster, run.reference_flops)) {
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

double DisturbedTimes::seconds(int rank, int step, size_t item, const ProgramItem& passes) const {
  double seconds = 0;
  for (const auto& pass : passes_of(passes)) seconds += run_.stage(pass.stage).passes.of(pass.kind);
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
