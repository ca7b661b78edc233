#include "troika/server/consistency.h"

#include <algorithm>

#include "troika/base/error.h"

namespace troika::server {

Consistency sequential() {
  return bounded_delay(0);
}

Consistency bounded_delay(int64_t delay) {
  if (delay < 0) {
    throw Error(
        "server", ErrorKind::usage,
        {.what = "the bound of the delay", .got = std::to_string(delay), .expected = ">= 0"});
  }
  return [delay](const StepRequest& request) {
    return std::ranges::all_of(request.finished, [&](const auto& worker) {
      return worker.second >= request.step - delay - 1;
    });
  };
}

Consistency eventual() {
  return [](const StepRequest&) { return true; };
}

}  // namespace troika::server
