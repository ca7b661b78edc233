#include "troika/comm/diagnostics/deadlock.h"

#include <gmock/gmock.h>

namespace troika::comm {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr uint64_t kMain = 1;
constexpr uint64_t kOther = 2;

// The account of a member of a group whose first rank is 0. The member has started `calls` calls,
// and is in the last one if a thread is given.
GroupAccount member(uint32_t id, int64_t calls, uint64_t inside = 0, uint64_t caller = kMain) {
  return {.id = id,
          .sequence = calls - 1,
          .inside = inside,
          .caller = caller,
          .call = inside ? "call of " + std::to_string(id) : ""};
}

std::vector<int> ranks(const std::vector<Stuck>& ring) {
  std::vector<int> found;
  for (const auto& stuck : ring) found.push_back(stuck.rank);
  return found;
}

TEST(Deadlock, RanksThatWaitForEachOtherInTwoGroupsAreFoundByAll) {
  const Account first{member(0, 5, kMain), member(1, 3)};
  const Account others{member(0, 4), member(1, 4, kMain)};
  const std::vector<std::optional<Account>> accounts{first, others, others, others};
  for (int rank = 0; rank < 4; ++rank) {
    const auto ring = find_deadlock(accounts, rank);
    ASSERT_EQ(ranks(ring), (std::vector<int>{0, 1})) << rank;
    EXPECT_EQ(ring[0].waits_for, 1);
    EXPECT_EQ(ring[0].call, "call of 0");
    EXPECT_EQ(ring[1].waits_for, 0);
    EXPECT_EQ(ring[1].call, "call of 1");
  }
}

TEST(Deadlock, ARingMayBeLong) {
  // Rank r waits in group r + 1 for the next rank.
  std::vector<std::optional<Account>> accounts;
  for (uint32_t r = 0; r < 5; ++r) {
    accounts.push_back(Account{member(r + 1, 1, kMain), member((r + 4) % 5 + 1, 0)});
  }
  EXPECT_EQ(ranks(find_deadlock(accounts, 3)), (std::vector<int>{0, 1, 2, 3, 4}));
}

TEST(Deadlock, ARankThatMayStillComeIsNoDeadlock) {
  const Account waits{member(0, 5, kMain), member(1, 3)};
  // It computes.
  EXPECT_THAT(find_deadlock({waits, Account{member(0, 4), member(1, 3)}}, 0), IsEmpty());
  // Another thread of the rank is in a call, or made earlier calls of that group.
  EXPECT_THAT(find_deadlock({waits, Account{member(0, 4), member(1, 4, kOther)}}, 0), IsEmpty());
  EXPECT_THAT(find_deadlock({waits, Account{member(0, 4, 0, 0), member(1, 4, kMain)}}, 0),
              IsEmpty());
  // It waits for a rank that may come, and for one that is not known.
  const Account third{member(1, 3)};
  EXPECT_THAT(
      find_deadlock(
          {Account{member(0, 5, kMain)}, Account{member(0, 4), member(1, 4, kMain)}, third}, 0),
      IsEmpty());
  EXPECT_THAT(find_deadlock({Account{member(0, 5, kMain)},
                             Account{member(0, 4), member(1, 4, kMain)}, std::nullopt},
                            0),
              IsEmpty());
  // All are in the same call.
  const Account same{member(0, 5, kMain), member(1, 3)};
  EXPECT_THAT(find_deadlock({same, same, same}, 1), IsEmpty());
}

TEST(Deadlock, GroupsOfDifferentRanksWithOneNumberAreNotConfused) {
  GroupAccount elsewhere = member(1, 9, kMain);
  elsewhere.first = 2;
  const Account waits{member(0, 5, kMain), member(1, 3)};
  const Account computes{member(0, 4), member(1, 3)};
  const Account other{member(0, 4), elsewhere};
  EXPECT_THAT(find_deadlock({waits, computes, other}, 0), IsEmpty());
}

TEST(Deadlock, AccountsGoOverTheWire) {
  const Account account{member(0, 5, ~uint64_t{0}), member(7, 0, 0, 0)};
  EXPECT_EQ(account_from_text(to_text(account)), account);
  for (const char* text : {"", "[", "[1]", R"([["a",0,0,0,0,""]])", "[[1,2,3]]"}) {
    EXPECT_FALSE(account_from_text(text)) << text;
  }
}

TEST(Deadlock, IsAskedForSeldomAndToldOnlyIfItStays) {
  const Account first{member(0, 5, kMain), member(1, 3)};
  const Account second{member(0, 4), member(1, 4, kMain)};
  const Account later{member(0, 4), member(1, 5, kMain)};
  int asked = 0;
  bool stays = false;
  const auto ask = [&] {
    ++asked;
    return cluster::Answers{{to_text(first), to_text(asked % 2 == 0 && !stays ? later : second)},
                            {0, 1}};
  };
  DeadlockWatch watch(1, [](int rank) { return fmt::format("rank {} = tensor {}", rank, rank); });
  using std::chrono::milliseconds;
  EXPECT_FALSE(watch.look(milliseconds(999), ask));
  EXPECT_EQ(asked, 0);
  EXPECT_FALSE(watch.look(milliseconds(1000), ask));
  EXPECT_EQ(asked, 2);
  EXPECT_FALSE(watch.look(milliseconds(1999), ask));
  EXPECT_EQ(asked, 2);
  stays = true;
  const auto error = watch.look(milliseconds(2000), ask);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::usage);
  EXPECT_THAT(error->what(),
              HasSubstr("rank 0 = tensor 0 waits in call of 0 for rank 1 = tensor 1"));
  EXPECT_THAT(error->what(),
              HasSubstr("rank 1 = tensor 1 waits in call of 1 for rank 0 = tensor 0"));
}

}  // namespace
}  // namespace troika::comm
