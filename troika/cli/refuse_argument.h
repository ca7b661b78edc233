// The errors of `troika simulate` about its arguments.
#pragma once

#include <string>
#include <utility>

#include "troika/base/error.h"

namespace troika::cli {

// Throws Error(usage): `[simulate] what; got X, expected Y (hint)`.
[[noreturn]] inline void refuse_argument(std::string what, std::string got, std::string expected,
                                         std::string hint = {}) {
  throw Error("simulate", ErrorKind::usage,
              {.what = std::move(what),
               .got = std::move(got),
               .expected = std::move(expected),
               .hint = std::move(hint)});
}

}  // namespace troika::cli
