#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <atomic>

#include "tests/comm/conformance.h"
#include "tests/support/errors.h"
#include "troika/comm/backend.h"
#include "troika/comm/local/local.h"

namespace troika::comm {
namespace {

class Sizes : public testing::TestWithParam<int> {};

TEST_P(Sizes, LocalConforms) {
  local::run(GetParam(), conform);
}

INSTANTIATE_TEST_SUITE_P(Local, Sizes, testing::Values(1, 2, 3, 4, 7),
                         testing::PrintToStringParamName());

TEST(Group, RanksThatCallDifferentThingsAreToldWhoCalledWhat) {
  std::atomic<int> named = 0;
  const auto body = [&](Group group) {
    try {
      if (group.rank() == 0) {
        group.all_reduce(at::zeros({3}), ReduceOp::sum, "loss").wait();
      } else {
        group.all_reduce(at::zeros({4}), ReduceOp::sum, "loss").wait();
      }
    } catch (const Error& error) {
      const std::string text = error.what();
      named += text.find("rank 0: all_reduce #0 'loss' of Float x 3 sum") != std::string::npos &&
               text.find("rank 1: all_reduce #0 'loss' of Float x 4 sum") != std::string::npos;
      throw;
    }
  };
  EXPECT_THROW(local::run(2, body), Error);
  EXPECT_EQ(named, 2);
}

TEST(Group, DifferentOperationsDoNotPair) {
  const auto body = [](Group group) {
    if (group.rank() == 0) {
      group.barrier();
    } else {
      group.broadcast(at::zeros({1})).wait();
    }
  };
  try {
    local::run(3, body);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_THAT(error.what(), testing::HasSubstr("ranks called different collectives"));
  }
}

TEST(Group, AnAbsentRankIsATimeoutThatNamesTheCall) {
  std::atomic<int> timeouts = 0;
  const auto body = [&](Group group) {
    if (group.rank() == 1) {
      while (timeouts == 0) std::this_thread::yield();
      return;
    }
    try {
      group.all_reduce(at::zeros({2}), ReduceOp::sum, "grads").wait();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::timeout);
      EXPECT_STREQ(error.what(),
                   "[comm] rank 0 of 2 failed in all_reduce #0 'grads' of Float x 2 sum: [comm] no "
                   "message from rank 1 in time");
      ++timeouts;
    }
  };
  local::run(2, body, {.timeout = Milliseconds(50)});
  EXPECT_EQ(timeouts, 1);
}

TEST(Group, ARankThatThrowsReleasesTheOthers) {
  const auto body = [](Group group) {
    if (group.rank() == 2) throw std::runtime_error("out of memory");
    EXPECT_THROW(
        try { group.barrier(); } catch (const Error& error) {
          EXPECT_EQ(error.kind(), ErrorKind::peer);
          EXPECT_THAT(error.what(), testing::HasSubstr("rank 2 is gone: its program failed"));
          throw;
        },
        Error);
  };
  // The cause wins over what the other ranks noticed.
  EXPECT_THROW(local::run(3, body), std::runtime_error);
}

TEST(Group, ErrorsAreStickyAndKeepTheirKind) {
  std::atomic<int> checked = 0;
  const auto body = [&](Group group) {
    if (group.rank() == 1) {
      while (checked == 0) std::this_thread::yield();
      return;
    }
    EXPECT_THROW(group.barrier("first"), Error);
    try {
      group.barrier("second");
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::timeout);
      EXPECT_STREQ(error.what(),
                   "[comm] this group is unusable since an earlier failure: [comm] rank 0 of 2 "
                   "failed in barrier #0 'first': [comm] no message from rank 1 in time");
    }
    ++checked;
  };
  local::run(2, body, {.timeout = Milliseconds(50)});
  EXPECT_EQ(checked, 1);
}

// Waiting for the queued call would outlast the time-out of the test.
TEST(Group, ARankThatThrowsDoesNotWaitForWhatItHasQueued) {
  auto ranks = local::make(2);
  const auto fail = [&] {
    Group group(std::move(ranks[0]), {.timeout = std::chrono::minutes(30)});
    group.all_reduce(at::zeros({1}), ReduceOp::sum, "queued");
    throw std::runtime_error("out of memory");
  };
  EXPECT_THROW(fail(), std::runtime_error);
}

TEST(Group, RefusesWhatItCannotDo) {
  auto group = local::alone();
  EXPECT_ERROR(group.broadcast(at::zeros({1}), 1), ErrorKind::usage,
               "[comm] broadcast from a rank that is not in the group; got 1, expected 0 to 0");
  EXPECT_ERROR(group.all_reduce(at::zeros({1}, at::kComplexFloat)), ErrorKind::usage,
               "[comm] cannot reduce this type; got ComplexFloat, expected a real number, an "
               "integer or a boolean");
  EXPECT_ERROR(group.all_reduce(at::zeros({1}, at::kBool), ReduceOp::average), ErrorKind::usage,
               "[comm] all_reduce; got the average of booleans, expected numbers");
  EXPECT_ERROR(backend("glo"), ErrorKind::usage,
               "[comm] unknown back end; got glo (did you mean gloo?)");
}

}  // namespace
}  // namespace troika::comm
