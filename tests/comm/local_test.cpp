#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <atomic>
#include <barrier>
#include <future>
#include <limits>
#include <thread>

#include "tests/comm/conformance.h"
#include "tests/support/errors.h"
#include "troika/base/file.h"
#include "troika/base/log.h"
#include "troika/base/temporary_folder.h"
#include "troika/comm/diagnostics/flight_report.h"
#include "troika/comm/local/local.h"
#include "troika/comm/messages/backend.h"
#include "troika/comm/world/world.h"

namespace troika::comm {
namespace {

class LocalSizes : public testing::TestWithParam<int> {};

TEST_P(LocalSizes, LocalConforms) {
  local::run(GetParam(), conform);
}

// Ranks that act as if they were on several nodes of different sizes.
TEST(Local, ConformsOnSeveralNodes) {
  local::run_ranks(local::make(5, {0, 1, 1, 2, 1}), conform);
}

INSTANTIATE_TEST_SUITE_P(Local, LocalSizes, testing::Values(1, 2, 3, 4, 7),
                         testing::PrintToStringParamName());

TEST(Group, RanksThatCallDifferentThingsAreToldWhoCalledWhat) {
  std::atomic<int> named = 0;
  const auto body = [&](Group group) {
    try {
      if (group.rank() == 0) {
        group.all_reduce(at::zeros({3}), ReduceOp::sum, {.label = "loss"});
      } else {
        group.all_reduce(at::zeros({4}), ReduceOp::sum, {.label = "loss"});
      }
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      EXPECT_THAT(text, testing::ContainsRegex("rank 0: all_reduce #0 'loss' "
                                               "\\(local_test.cpp:[0-9]+\\) of Float x 3 sum"));
      EXPECT_THAT(text, testing::ContainsRegex("rank 1: all_reduce #0 'loss' "
                                               "\\(local_test.cpp:[0-9]+\\) of Float x 4 sum"));
      ++named;
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
      group.broadcast(at::zeros({1}));
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

// Every other rank names it, with the call it missed and the last one it made.
TEST(Group, AnAbsentRankIsNamedByAllOthersWithTheCallItMissed) {
  std::atomic<int> named = 0;
  std::barrier all_run(4);  // the time-out is that of "start", too
  const auto body = [&](const Group& group) {
    all_run.arrive_and_wait();
    group.barrier({.label = "start"});
    if (group.rank() == 2) {
      while (named < 3) std::this_thread::yield();
      return;
    }
    try {
      group.all_reduce(at::zeros({2}), ReduceOp::sum, {.label = "grads"});
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::timeout);
      EXPECT_THAT(error.what(),
                  testing::ContainsRegex("all_reduce #1 'grads' .* of Float x 2 sum"));
      EXPECT_THAT(error.what(),
                  testing::ContainsRegex("rank 2 has not called it \\(last: barrier #0 'start' "
                                         ".*, which ended\\)"));
    }
    ++named;
  };
  local::run(4, body, {.timeout = Milliseconds(1000)});
  EXPECT_EQ(named, 3);
}

TEST(Group, ARankThatLeavesEarlyIsNamedAtOnce) {
  const auto body = [&](const Group& group) {
    group.barrier({.label = "together"});
    if (group.rank() == 1) return;
    try {
      group.barrier({.label = "alone"});
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::peer);
      EXPECT_THAT(error.what(), testing::ContainsRegex("rank 1 has left and takes no part in "
                                                       "barrier #1 'alone' .*; got its last call "
                                                       "was barrier #0 'together'"));
    }
  };
  local::run(3, body, {.timeout = std::chrono::minutes(30)});
}

TEST(Group, ALastCallIsNoReasonToWaitForWhoLeftAfterIt) {
  for (int round = 0; round < 50; ++round) {
    local::run(3, [](const Group& group) {
      auto tensor = at::ones({100'000});
      group.all_reduce(tensor, ReduceOp::sum, {.async_op = group.rank() == 1});
    });
  }
}

TEST(Group, SplitsOfAllToAllThatDoNotFitAreAnErrorOnEveryRank) {
  std::atomic<int> errors = 0;
  const auto body = [&](const Group& group) {
    // Rank 0 expects two rows of rank 1, which sends one.
    const std::vector<int64_t> in{1, 1};
    const std::vector<int64_t> out =
        group.rank() == 0 ? std::vector<int64_t>{1, 2} : std::vector<int64_t>{1, 1};
    try {
      group.all_to_all(at::zeros({group.rank() == 0 ? 3 : 2}), at::zeros({2}), out, in);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      EXPECT_THAT(error.what(), testing::HasSubstr("got 1 elements from rank 1 to rank 0, expected "
                                                   "2, by rank 0's output splits"));
      ++errors;
    }
  };
  local::run(2, body);
  EXPECT_EQ(errors, 2);
}

TEST(Group, AMessageOfAnotherSizeIsAnError) {
  const auto body = [](const Group& group) {
    if (group.rank() == 0) {
      group.send(at::zeros({3}), 1, 9);
      return;
    }
    try {
      group.receive(at::zeros({4}), 0, 9).wait();
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      EXPECT_STREQ(error.what(),
                   "[comm] a message of another size from rank 0, tag 9; got Float x "
                   "3, expected Float x 4");
    }
  };
  local::run(2, body);
}

TEST(Group, RanksThatCallDifferentThingsWithoutSharingANeighbourAreTold) {
  // Root 3 gathers from all; only ranks 0 and 4 have a neighbour in another call.
  std::atomic<int> named = 0;
  const auto body = [&](const Group& group) {
    const int64_t count = group.rank() < 4 ? 8 : 400'000;
    try {
      const auto whole = group.rank() == 3 ? at::zeros({8 * count}) : at::Tensor();
      group.gather(whole, at::ones({count}), 3, {.label = "uneven"});
      group.barrier();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      EXPECT_THAT(error.what(), testing::HasSubstr("Float x 8 with root 3"));
      EXPECT_THAT(error.what(), testing::HasSubstr("Float x 400000 with root 3"));
      ++named;
    }
  };
  local::run(8, body);
  EXPECT_EQ(named, 8);
}

TEST(Group, SplitsGoOnForLifeAsLongAsFewExistAtATime) {
  local::run(3, [](const Group& group) {
    const auto kept = *group.split(0);
    for (int i = 0; i < 1200; ++i) {
      const auto part = *group.split(0);
      auto tensor = at::full({1}, i);
      part.all_reduce(tensor, ReduceOp::max);
      ASSERT_EQ(tensor.item<int>(), i);
    }
    auto ranks = at::full({1}, group.rank());
    kept.all_reduce(ranks);
    EXPECT_EQ(ranks.item<int>(), 3);
  });
}

TEST(Group, TooManyGroupsAtATimeAreRefusedOnEveryRank) {
  std::atomic<int> refused = 0;
  local::run(2, [&](const Group& group) {
    std::vector<Group> parts;
    for (int i = 0; i < 511; ++i) parts.push_back(*group.split(0));
    EXPECT_ERROR(group.split(0), ErrorKind::usage,
                 "[comm] too many groups at a time; got 511 and one more, expected at most 511 "
                 "besides the world, on any rank");
    ++refused;
    parts.erase(parts.begin() + 200);
    group.barrier();
    const auto again = *group.split(0);
    auto tensor = at::ones({1});
    again.all_reduce(tensor);
    EXPECT_EQ(tensor.item<float>(), 2);
  });
  EXPECT_EQ(refused, 2);
}

TEST(Group, AMessageThatAFormerGroupNeverReceivedIsRefused) {
  std::promise<void> sent;  // rank 1's failure reaches every call of rank 0 that comes after it
  const auto body = [&](const Group& group) {
    {
      const auto former = *group.split(0);
      if (group.rank() == 0) former.send(at::ones({1}), 1);
    }
    for (int i = 0; i < 510; ++i) group.split(0);
    const auto reused = *group.split(0);  // has the former's tags
    if (group.rank() == 0) {
      reused.send(at::zeros({1}), 1);
      sent.set_value();
      return;
    }
    sent.get_future().wait();
    EXPECT_ERROR(
        reused.receive(at::zeros({1}), 0).wait(), ErrorKind::usage,
        "[comm] a message from rank 0, tag 0, that a former group never received; expected "
        "every message to be received while its group exists");
  };
  local::run(2, body);
}

TEST(Group, TagSpacesFollowFromTheLargestTag) {
  EXPECT_EQ(tag_spaces_within(std::numeric_limits<int32_t>::max()), 511U);
  EXPECT_EQ(tag_spaces_within((1 << 23) - 1), 127U);
  EXPECT_EQ(tag_spaces_within(0xffff), 0U);
  EXPECT_ERROR(tag_spaces_within(32767), ErrorKind::usage,
               "[comm] the transport has too few tags for messages; got 0 to 32767, expected at "
               "least 0 to 65535 (choose back end tcp)");
}

TEST(Group, AStalledCallIsWarnedOfBeforeItsDeadline) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "log";
  log::also_to_file(file);
  const auto warned = [&] {
    return read_file(file).find("has been waiting for") != std::string::npos;
  };
  local::run(2,
             [&](const Group& group) {
               while (group.rank() == 1 && !warned()) std::this_thread::yield();
               group.barrier({.label = "late"});
             },
             {.stall_warning = Milliseconds(1)});
  EXPECT_THAT(read_file(file),
              testing::ContainsRegex("barrier #0 'late' .* has been waiting for .*: rank 1 has not "
                                     "called it \\(it has called nothing yet\\)"));
}

TEST(Group, EveryRankLeavesAFlightRecord) {
  const TemporaryFolder folder;
  const auto body = [](const Group& group) {
    group.barrier({.label = "start"});
    EXPECT_THROW(group.all_reduce(at::zeros({1 + group.rank()}), ReduceOp::sum, {.label = "odd"}),
                 Error);
  };
  local::run(3, body, {.flight_record = folder.path()});
  for (int r = 0; r < 3; ++r) {
    const auto record = read_file(folder.path() / fmt::format("world-rank{}.json", r));
    EXPECT_THAT(record, testing::HasSubstr("\"label\": \"odd\""));
    EXPECT_THAT(record, testing::HasSubstr("\"state\": \"failed\""));
  }
  EXPECT_THAT(flight_report(folder.path()), testing::HasSubstr("'odd'"));
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
  // The original error wins over the consequences on other ranks.
  EXPECT_THROW(local::run(3, body), std::runtime_error);
}

TEST(Group, ErrorsAreStickyAndKeepTheirKind) {
  std::atomic<int> checked = 0;
  const auto body = [&](Group group) {
    if (group.rank() == 1) {
      while (checked == 0) std::this_thread::yield();
      return;
    }
    EXPECT_THROW(group.barrier({.label = "first"}), Error);
    try {
      group.barrier({.label = "second"});
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::timeout);
      EXPECT_THAT(error.what(),
                  testing::StartsWith("[comm] this group is unusable since an earlier failure: "
                                      "[comm] barrier #0 'first' ("));
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
    group.all_reduce(at::zeros({1}), ReduceOp::sum, {.label = "queued", .async_op = true});
    throw std::runtime_error("out of memory");
  };
  EXPECT_THROW(fail(), std::runtime_error);
}

TEST(Group, RefusesWhatItCannotDo) {
  auto group = local::alone();
  EXPECT_ERROR(group.broadcast(at::zeros({1}), 1), ErrorKind::usage,
               "[comm] the root is not in the group; got 1, expected 0 to 0");
  EXPECT_ERROR(group.all_reduce(at::zeros({1}, at::kComplexFloat)), ErrorKind::usage,
               "[comm] cannot reduce this type; got ComplexFloat, expected a real number, an "
               "integer or a boolean");
  EXPECT_ERROR(group.all_reduce(at::zeros({1}, at::kBool), ReduceOp::average), ErrorKind::usage,
               "[comm] cannot reduce; got the average of booleans, expected numbers");
  EXPECT_ERROR(backend("glo"), ErrorKind::usage,
               "[comm] unknown back end; got glo (did you mean gloo?)");
  for (const char* open : {"gloo", "mpi"}) {
    EXPECT_ERROR(protection_for(open, "encrypted"), ErrorKind::usage,
                 fmt::format("[comm] back end {} cannot protect messages; got protection "
                             "encrypted, expected none (choose back end tcp)",
                             open));
  }
  EXPECT_ERROR(world({.group = {.protection = "encrypt"}}), ErrorKind::usage,
               "[net] unknown protection; got encrypt (did you mean encrypted?)");
}

}  // namespace
}  // namespace troika::comm
