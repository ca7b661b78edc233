// Errors of data sets that cannot be read or made.
#pragma once

#include <string>

#include "troika/base/error.h"

namespace troika::data {

// Throws an Error of room data and kind usage.
[[noreturn]] inline void fail(std::string what, std::string got, std::string expected,
                              std::string hint = {}) {
  throw Error("data", ErrorKind::usage,
              {.what = std::move(what),
               .got = std::move(got),
               .expected = std::move(expected),
               .hint = std::move(hint)});
}

}  // namespace troika::data
