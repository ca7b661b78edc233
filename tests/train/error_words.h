// Returns the message of an error, for matchers.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "troika/base/error.h"

namespace troika::train {

// Returns the message of the Error(usage) that `body` throws; "nothing" if it does not throw.
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
