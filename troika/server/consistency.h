// Consistency: a function that the scheduler calls to decide when a worker may begin a step (Li et
// al., OSDI 2014, section 3.4).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace troika::server {

struct StepRequest {
  std::string worker;  // the worker that asks
  int64_t step = 0;    // the step that it wants to begin, counted from 0
  // The last step that each worker has finished, including the worker that asks; -1: none. A worker
  // has finished a step when the servers have acknowledged all its requests of this step and of
  // earlier ones.
  std::map<std::string, int64_t> finished;
};

// Returns whether the step may begin. If not, it is called again whenever a worker finishes a step,
// joins or leaves. Runs on a thread of the scheduler's endpoint and must not block or throw.
using Consistency = std::function<bool(const StepRequest&)>;

// All workers finish step t - 1 before any begins step t: the results are those of one process.
Consistency sequential();
// All workers finish step t - delay - 1 before any begins step t. `delay` 0 is sequential(). Throws
// Error(server, usage) if it is negative.
Consistency bounded_delay(int64_t delay);
// No step waits.
Consistency eventual();

}  // namespace troika::server
