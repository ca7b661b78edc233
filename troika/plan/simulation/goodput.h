// The share of useful work of a run that fails and resumes from checkpoints.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace troika::plan {

// When a run fails, and the costs of checkpoints and restarts. Times are seconds.
struct FailureModel {
  // Mean time between failures of the run (of any device), > 0.
  double mean_between_failures = std::numeric_limits<double>::infinity();
  // The shape of the Weibull distribution of times between failures: 1: exponential, so failures do
  // not depend on the past; below 1: a failure makes the next one sooner (Schroeder and Gibson 2010
  // find 0.7 to 0.8 for large clusters).
  double shape = 1;
  // A checkpoint is due after the first step that ends at least this long after the last
  // checkpoint.
  double checkpoint_interval = 600;
  double checkpoint_seconds = 0;  // for which training pauses
  // From a failure until training resumes from the last checkpoint. Starts again if another failure
  // happens in this time.
  double restart_seconds = 0;
  uint64_t seed = 0;
};

struct Goodput {
  // Time of steps that were kept, divided by all time.
  double share = 1;
  // The rest of the time, as shares of all time. Lost time is that of repeated steps and of
  // checkpoints that a failure interrupted.
  double checkpoint_share = 0;
  double lost_share = 0;
  double restart_share = 0;
  int64_t failures = 0;
  int64_t steps_between_checkpoints = 0;
  double simulated_seconds = 0;
  // The expected share for exponential times between failures, if all steps take the mean time
  // (Daly 2006, FGCS 22(3), with failures during restarts): for work t, checkpoint c, mean M and
  // restart R, it is t / (M e^(R/M) (e^((t+c)/M) - 1)). Empty for other shapes.
  std::optional<double> expected_share;
  // The checkpoint interval with the least loss, to first order: sqrt(2 c M) (Young 1974, CACM
  // 17(9)).
  double best_interval = 0;
};

// Simulates until 20000 failures, or 2 million checkpoints. `step_seconds` are the times of
// consecutive steps, > 0; the list is repeated. Deterministic for a seed. Throws Error(usage) for a
// time that is negative or not finite (a mean of infinity means no failures), and for a mean
// between failures or a shape that is not above 0.
Goodput simulate_goodput(const FailureModel& model, const std::vector<double>& step_seconds);

}  // namespace troika::plan
