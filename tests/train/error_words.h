// The words of an error, for matchers.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "troika/base/error.h"

namespace troika::train {

// The message of what `body` throws, an error of usage; "nothing" if it does not throw.
inline std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    return error.what();
  }
  return "nothing";
}

}  // namespace troika::train
