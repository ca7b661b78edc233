// The errors of troika::layout.
#pragma once

#include <string>
#include <utility>

#include "troika/base/error.h"

namespace troika::layout {

// Throws Error(usage): `[layout] what; got X, expected Y (hint)`.
[[noreturn]] inline void refuse(std::string what, std::string got, std::string expected,
                                std::string hint = {}) {
  throw Error("layout", ErrorKind::usage,
              {.what = std::move(what),
               .got = std::move(got),
               .expected = std::move(expected),
               .hint = std::move(hint)});
}

}  // namespace troika::layout
