// Groups that are made by their members only.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cstdint>
#include <functional>
#include <latch>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/process_usage.h"
#include "troika/base/error.h"
#include "troika/comm/local/local.h"

namespace troika::comm {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::optional<Error> error_of_call(const std::function<void()>& call) {
  try {
    call();
    return std::nullopt;
  } catch (const Error& error) {
    return error;
  }
}

TEST(NewGroup, NamesAMemberThatDoesNotCome) {
  for (const int absent : {0, 3}) {
    std::latch told(3);
    local::run(
        5,
        [&](const Group& world) {
          if (world.rank() == absent) return told.wait();
          if (world.rank() == 4) return;
          const auto error = error_of_call([&] { world.new_group({3, 1, 0, 2}); });
          told.count_down();
          ASSERT_TRUE(error);
          EXPECT_EQ(error->kind(), ErrorKind::timeout) << error->what();
          EXPECT_THAT(
              error->what(),
              HasSubstr(fmt::format(
                  "receive #0 from rank {}, tag 8191 'new_group' (new_group_test.cpp:", absent)));
        },
        {.timeout = Milliseconds(200)});
  }
}

TEST(NewGroup, ListsThatDifferAreToldToAll) {
  local::run(4, [](const Group& world) {
    const auto error = error_of_call([&] {
      if (world.rank() < 3) {
        world.new_group(world.rank() == 2 ? std::vector<int>{0, 2, 3} : std::vector<int>{0, 1, 2});
      }
      world.barrier();
    });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->kind(), ErrorKind::usage) << error->what();
    EXPECT_THAT(error->what(),
                HasSubstr("ranks make different groups; got rank 0: 0, 1, 2; rank "
                          "2: 0, 2, 3, expected the same list and option on every rank of it"));
  });
}

TEST(NewGroup, HasANumberThatNoMemberHasSeen) {
  // A rank that was in many groups before, and one that was in none.
  local::run(3, [](const Group& world) {
    for (int i = 0; world.rank() < 2 && i < 40; ++i) world.new_group({0, 1}).barrier();
    if (world.rank() == 0) return;
    const auto mine = world.new_group({2, 1});
    const auto kept = world.rank() == 1 ? std::optional(mine) : std::nullopt;
    for (int i = 0; i < 40; ++i) world.new_group({2, 1}).barrier();
    mine.barrier();
  });
}

TEST(NewGroup, ThousandsLeaveNothingBehind) {
  constexpr int kGroups = 6000, kSettled = 1500;
  local::run(5, [](const Group& world) {
    int64_t before = 0;
    for (int i = 0; i < kGroups; ++i) {
      if (i == kSettled) {
        world.barrier();
        before = test::process_usage().resident_bytes;
      }
      const int other = 1 + i % 4;
      if (world.rank() == 0) world.new_group({other, 0}).barrier();
      if (world.rank() == other) world.new_group({other, 0}).barrier();
    }
    world.barrier();
    EXPECT_LT(test::process_usage().resident_bytes, before + (int64_t{16} << 20));
  });
}

// The ranks of one group wait for rank 0, which does not come; all others continue.
TEST(NewGroup, ThatFailsAloneLeavesTheRestOfTheWorldAtPeace) {
  std::latch told(2);
  local::run(5,
             [&](const Group& world) {
               const bool is_even = world.rank() % 2 == 0;
               const auto members = is_even ? std::vector<int>{0, 2, 4} : std::vector<int>{1, 3};
               const auto part = world.new_group(members, {.fails_alone = true});
               const auto inner = part.split(0);
               const auto inner_members = inner->size();
               if (is_even) {
                 if (world.rank() == 0) told.wait();
                 const auto error = error_of_call([&] { part.barrier({.label = "late"}); });
                 if (world.rank() != 0) told.count_down();
                 ASSERT_TRUE(error);
                 EXPECT_EQ(error->kind(), ErrorKind::timeout) << error->what();
                 EXPECT_THAT(error->what(), AllOf(HasSubstr("barrier #1 'late'"),
                                                  HasSubstr("rank 0 has not called it")));
               } else {
                 for (int i = 0; i < 100; ++i) part.barrier();
               }
               // A group made from this group, and the world, are not affected.
               const auto sum = at::ones({50'000});
               inner->all_reduce(sum);
               EXPECT_TRUE(sum.eq(inner_members).all().item<bool>());
               while (world.rank() != 0 && !told.try_wait()) std::this_thread::yield();
               world.all_reduce(sum);
               EXPECT_EQ(sum[0].item<float>(), 3 * 3 + 2 * 2);
             },
             {.timeout = Milliseconds(1000)});
}

TEST(NewGroup, OptionsThatDifferAreToldToAll) {
  local::run(2, [](const Group& world) {
    const auto error = error_of_call([&] {
      world.new_group({0, 1}, {.fails_alone = world.rank() == 1});
      world.barrier();
    });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->kind(), ErrorKind::usage);
    EXPECT_THAT(error->what(), HasSubstr("rank 0: 0, 1; rank 1: failing alone, 0, 1, expected"));
  });
}

// A member is notified of the failure before it has entered the group.
TEST(NewGroup, AFailureIsHeardOfByAMemberThatComesLater) {
  for (int round = 0; round < 200; ++round) {
    local::run(3, [](const Group& world) {
      try {
        const auto part = world.new_group({0, 1, 2}, {.fails_alone = true});
        if (world.rank() == 0) throw std::runtime_error("at once");
        const auto error = error_of_call([&] { part.barrier(); });
        ASSERT_TRUE(error);
        EXPECT_THAT(error->what(), HasSubstr("rank 0 is gone: its program failed"));
      } catch (const std::runtime_error&) {
      }
      world.barrier();
    });
  }
}

TEST(NewGroup, NumbersOfGroupsThatFailedAreNotUsedAgain) {
  local::run(2, [](const Group& world) {
    const auto fail_one = [&] {
      const auto part = world.new_group({0, 1}, {.fails_alone = true});
      // It is never received, and must not be taken for a message of a later group.
      part.send(at::full({1}, 1.0F), 1 - world.rank(), 2);
      world.barrier();
      if (world.rank() == 0) {
        part.receive(at::zeros({1}), 1, 3).wait(Deadline::after(Milliseconds(0)));
      } else {
        part.barrier();
      }
    };
    for (int i = 0; i < 20; ++i) EXPECT_TRUE(error_of_call(fail_one));
    for (int i = 0; i < 600; ++i) {
      const auto part = world.new_group({0, 1});
      const auto value = at::zeros({1});
      const auto sent = part.send(at::full({1}, 2.0F), 1 - world.rank(), 2);
      part.receive(value, 1 - world.rank(), 2).wait();
      sent.wait();
      ASSERT_EQ(value.item<float>(), 2.0F);
    }
  });
}

}  // namespace
}  // namespace troika::comm
