// The errors of a command about its arguments.
#pragma once

#include <string>
#include <utility>

#include "troika/base/error.h"

namespace troika::cli {

// Throws Error(usage): `[command] what; got X, expected Y (hint)`.
[[noreturn]] inline void refuse_argument(const char* command, std::string what, std::string got,
                                         std::string expected, std::string hint = {}) {
  throw Error(command, ErrorKind::usage,
              {.what = std::move(what),
               .got = std::move(got),
               .expected = std::move(expected),
               .hint = std::move(hint)});
}

}  // namespace troika::cli
