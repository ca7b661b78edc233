// Learning-rate schedules: pure functions of the optimizer step, so a resumed run needs no saved
// state for them. A schedule that depends on metrics is in plateau.h.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace troika::optim {

struct ScheduleOptions {
  // How the rate is computed from the base rate, after the warm-up:
  // "constant"; "step": times gamma every step_size steps; "multi_step": times gamma at each
  // milestone; "cosine": half a cosine to final_factor (Loshchilov and Hutter, ICLR 2017, without
  // restarts); "polynomial": to final_factor as (1 - progress)^power; "one_cycle": half a cosine
  // from start_factor up and one down to final_factor (Smith and Topin 2018; PyTorch's OneCycleLR),
  // which includes a warm-up; "plateau": constant except for ReduceOnPlateau.
  // Steps and milestones are counted from the start of the run.
  std::string name = "cosine";
  // Steps over which the rate first rises linearly to the base rate. If `scaling` makes the rate
  // larger, it rises from the base rate to the scaled one (Goyal et al. 2017, arXiv 1706.02677,
  // section 2.2).
  int64_t warmup_steps = 0;
  double final_factor = 0.0;  // cosine, polynomial, one_cycle; the minimum of plateau
  double gamma = 0.1;         // step, multi_step and plateau
  int64_t step_size = 1000;   // step
  std::vector<int64_t> milestones = {};
  double power = 1.0;          // polynomial
  double start_factor = 0.04;  // one_cycle
  double rise_fraction = 0.3;  // one_cycle: share of the steps that rise
  int64_t patience = 10;       // plateau: evaluations without improvement that are tolerated
  double threshold = 1e-4;     // plateau: the least improvement, relative to the best value
  // Growth of the rate with global batch / reference_batch: "none", "linear" (Goyal et al.),
  // "square_root" (Krizhevsky 2014, arXiv 1404.5997; You et al. 2020 for LAMB).
  std::string scaling = "none";
  int64_t reference_batch = 256;
};

const std::vector<std::string>& schedule_names();
const std::vector<std::string>& scaling_names();

// The length of a run.
struct RunLength {
  int64_t steps = 0;
  int64_t global_batch = 0;  // samples per step; used by `scaling`
};

// Returns the factor on the base rate at `step` (0 for the first), scaling included.
// make_schedule() throws Error(usage) for an unknown name, naming the nearest known one, for
// milestones that are not ascending, and for a warm-up before one_cycle.
using Schedule = std::function<double(int64_t step)>;
Schedule make_schedule(const ScheduleOptions& options, const RunLength& run);

}  // namespace troika::optim
