#include "troika/base/error.h"

#include <gmock/gmock.h>

#include "tests/support/errors.h"

namespace troika {
namespace {

TEST(Error, PrintsOnlyThePartsThatAreSet) {
  EXPECT_STREQ(Error("data", ErrorKind::usage, {.what = "bad"}).what(), "[data] bad");
  EXPECT_STREQ(
      Error("data", ErrorKind::usage, {.what = "bad", .got = "1", .expected = "2", .hint = "fix"})
          .what(),
      "[data] bad; got 1, expected 2 (fix)");
  EXPECT_STREQ(Error("data", ErrorKind::usage, {.what = "bad", .expected = "2"}).what(),
               "[data] bad; expected 2");
}

TEST(Error, GivesItsKindAsExitCode) {
  EXPECT_EQ(exit_code(Error("x", ErrorKind::timeout, {.what = "late"})), 4);
  EXPECT_EQ(exit_code(std::runtime_error("other")), 1);
}

TEST(Check, NamesConditionAndPlace) {
  try {
    TROIKA_CHECK(1 + 1 == 3, "sum");
    FAIL();
  } catch (const CheckError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("error_test.cpp"));
    EXPECT_THAT(error.what(), testing::HasSubstr("sum (check failed: 1 + 1 == 3)"));
  }
}

}  // namespace
}  // namespace troika
