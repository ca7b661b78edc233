// Learning-rate schedules: pure functions of the optimizer step, so that a resumed run needs no
// state of theirs.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace troika::optim {

struct ScheduleOptions {
  // "constant", or "cosine": half a cosine from the base rate to final_factor of it (Loshchilov and
  // Hutter, ICLR 2017, without restarts).
  std::string name = "cosine";
  // Steps over which the rate first rises linearly to the base rate (Goyal et al., 2017).
  int64_t warmup_steps = 0;
  double final_factor = 0.0;
};

const std::vector<std::string>& schedule_names();

// The factor on the base rate at `step` (0 for the first) of `total_steps`. Throws Error(usage) for
// an unknown name, naming the nearest.
using Schedule = std::function<double(int64_t step)>;
Schedule make_schedule(const ScheduleOptions& options, int64_t total_steps);

}  // namespace troika::optim
