// The errors of troika::plan.
#pragma once

#include <string>
#include <utility>

#include "troika/base/error.h"

namespace troika::plan {

// Throws Error(usage): `[plan] what; got X, expected Y (hint)`.
[[noreturn]] inline void refuse(std::string what, std::string got, std::string expected,
                                std::string hint = {}) {
  throw Error("plan", ErrorKind::usage,
              {.what = std::move(what),
               .got = std::move(got),
               .expected = std::move(expected),
               .hint = std::move(hint)});
}

}  // namespace troika::plan
