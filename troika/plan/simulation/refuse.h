// The errors of simulations.
#pragma once

#include <string>
#include <utility>

#include "troika/base/error.h"

namespace troika::plan {

// Throws Error(usage): `[plan] what; got X, expected Y`.
[[noreturn]] inline void refuse(std::string what, std::string got, std::string expected) {
  throw Error("plan", ErrorKind::usage,
              {.what = std::move(what), .got = std::move(got), .expected = std::move(expected)});
}

}  // namespace troika::plan
