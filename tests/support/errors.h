// EXPECT_ERROR(statement, kind, message): the statement throws a troika::Error of exactly this kind
// and message.
#pragma once

#include <gtest/gtest.h>

#include "troika/base/error.h"

#define EXPECT_ERROR(statement, expected_kind, message)                    \
  try {                                                                    \
    statement;                                                             \
    ADD_FAILURE() << #statement " did not throw; expected: " << (message); \
  } catch (const ::troika::Error& error) {                                 \
    EXPECT_STREQ(error.what(), std::string(message).c_str());              \
    EXPECT_EQ(error.kind(), expected_kind);                                \
  }
