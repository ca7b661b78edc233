#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/comm/conformance.h"
#include "tests/support/errors.h"
#include "tests/support/process_usage.h"

namespace troika::comm {

namespace {

void check_sum(const Group& group, int64_t own, int64_t expected) {
  auto sum = at::full({3000}, own, at::kLong);
  group.all_reduce(sum);
  EXPECT_TRUE(sum.eq(expected).all().item<bool>());
}

// The last rank of the world waits for a message that is sent only after the others have made a
// group and used it.
void check_that_others_need_not_come(const Group& group) {
  const int n = group.size(), last = n - 1;
  const auto word = at::zeros({1}, at::kLong);
  if (n > 1 && group.rank() == last) {
    group.receive(word, 0, 12).wait();
    EXPECT_EQ(word.item<int64_t>(), 12);
    return;
  }
  // In the order of the list, not of the ranks.
  std::vector<int> members(static_cast<size_t>(std::max(1, last)));
  std::iota(members.rbegin(), members.rend(), 0);
  const auto part = group.new_group(members);
  const int parts = static_cast<int>(members.size());
  EXPECT_EQ(part.size(), parts);
  EXPECT_EQ(part.rank(), parts - 1 - group.rank());
  check_sum(part, group.rank(), parts * (parts - 1) / 2);
  if (parts > 1) {
    const auto value = at::full({5}, group.rank(), at::kInt);
    const int next = (part.rank() + 1) % parts, previous = (part.rank() + parts - 1) % parts;
    const auto got = at::zeros({5}, at::kInt);
    part.batch({{Direction::send, value, next, 1}, {Direction::receive, got, previous, 1}}).wait();
    EXPECT_TRUE(got.eq(parts - 1 - previous).all().item<bool>());
  }
  if (n > 1 && group.rank() == 0) group.send(word.fill_(12), last, 12).wait();
}

// Each rank is in one group with the next rank and in one with the previous rank, besides the
// world's collectives, and makes groups of a group.
void check_groups_that_overlap(const Group& group) {
  const int n = group.size(), me = group.rank();
  if (n < 3) return;
  std::vector<Group> pairs;
  for (int first = 0; first < n; ++first) {
    const int second = (first + 1) % n;
    if (me == first || me == second) pairs.push_back(group.new_group({second, first}));
  }
  ASSERT_EQ(pairs.size(), 2U);
  for (const auto& pair : pairs) {
    ASSERT_EQ(pair.size(), 2);
    auto both = at::zeros({2}, at::kLong);
    pair.all_gather(both, at::full({1}, me, at::kLong));
    EXPECT_EQ(both[pair.rank()].item<int64_t>(), me);
  }
  check_sum(group, me, n * (n - 1) / 2);
  if (me == n - 1) return;
  std::vector<int> low(static_cast<size_t>(n - 1));
  std::iota(low.begin(), low.end(), 0);
  const auto part = group.new_group(low);
  if (me < 2) check_sum(part.new_group({1, 0}), me, 1);
  check_sum(part, me, (n - 1) * (n - 2) / 2);
}

// Makes, one after the other, more groups than can exist at a time (except with gloo). The other
// ranks wait in a call of the world.
void check_many_groups(const Group& group) {
  // A round trip of gloo's small messages takes tens of milliseconds.
  const int groups = group.backend() == "gloo" ? 60 : 520;
  test::ProcessUsage before;
  for (int i = 0; group.rank() < 2 && i < groups; ++i) {
    if (i == groups / 5) before = test::process_usage();
    const auto part = group.size() == 1 ? group.new_group({0}) : group.new_group({1, 0});
    if (i % 100 == 0) check_sum(part, group.rank(), group.size() == 1 ? 0 : 1);
  }
  group.barrier({.label = "many groups"});
  if (group.rank() >= 2) return;
  const auto after = test::process_usage();
  constexpr int64_t kMiB = int64_t{1} << 20;
  // Ranks that are threads of one process count the files that another opens to count.
  EXPECT_LE(after.descriptors, before.descriptors + 8);
  EXPECT_LT(after.resident_bytes, before.resident_bytes + 32 * kMiB);
  EXPECT_LT(after.shared_bytes, before.shared_bytes + 32 * kMiB);
}

void check_wrong_lists(const Group& group) {
  const int n = group.size(), me = group.rank();
  const auto expected =
      fmt::format("expected different ranks of 0 to {}, rank {} among them", n - 1, me);
  EXPECT_ERROR(
      group.new_group({me, n}), ErrorKind::usage,
      fmt::format("[comm] a group of a rank that there is not; got {}, {}, {}", me, n, expected));
  EXPECT_ERROR(
      group.new_group({me, me}), ErrorKind::usage,
      fmt::format("[comm] a rank is twice in a new group; got {}, {}, {}", me, me, expected));
  EXPECT_ERROR(group.new_group({}), ErrorKind::usage,
               "[comm] only members make a new group; " + expected);
}

std::optional<Error> error_in(const std::function<void()>& call) {
  try {
    call();
    return std::nullopt;
  } catch (const Error& error) {
    return error;
  }
}

// The failures of a group: different calls, a missing message, and an exception. Rank 0 is a
// member, and there are messages in flight that no rank receives.
void fail_by_calls(const Group& part, const std::string& first) {
  const auto error = error_in([&] {
    if (part.rank() == 0) part.barrier({.label = "other"});
    part.all_reduce(at::ones({100'000}), ReduceOp::sum, {.label = "mine"});
  });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::usage) << error->what();
  EXPECT_THAT(error->what(), testing::HasSubstr("ranks called different collectives"));
  EXPECT_THAT(error->what(), testing::HasSubstr(first + ": barrier #1 'other'"));
}

void fail_by_a_message(const Group& part, const std::string& first) {
  const int next = (part.rank() + 1) % part.size();
  const auto large = at::ones({300'000});
  std::vector<Work> sent;
  const auto error = error_in([&] {
    // A rank that comes late finds that the group has failed.
    sent.push_back(part.send(large, next, 7));
    sent.push_back(part.send(at::ones({2}), next, 8));
    if (part.rank() == 0) {
      part.receive(at::ones({2}), 1, 9, "votes").wait(Deadline::after(Milliseconds(100)));
    }
    part.all_reduce(large, ReduceOp::sum, {.label = "mine"});
  });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::timeout) << error->what();
  EXPECT_THAT(error->what(), testing::HasSubstr("tag 9 'votes'"));
  EXPECT_THAT(error->what(), testing::HasSubstr(first));
}

void fail_by_exception(std::optional<Group> part, const std::string& first) {
  if (part->rank() == 0) {
    try {
      const Group mine = *std::exchange(part, std::nullopt);
      throw std::runtime_error("the disk is full");
    } catch (const std::runtime_error&) {
    }
    return;
  }
  const auto error = error_in([&] { part->barrier({.label = "mine"}); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::peer) << error->what();
  EXPECT_THAT(error->what(), testing::HasSubstr(first + " is gone: its program failed"));
}

void check_groups_that_fail_alone(const Group& group) {
  const int n = group.size(), me = group.rank();
  if (n == 1) return;
  // All ranks in reverse order; without the last one if there are at least three.
  std::vector<int> members(static_cast<size_t>(std::max(2, n - 1)));
  std::iota(members.rbegin(), members.rend(), 0);
  const std::string backend(group.backend());
  if (backend.find("gloo") != std::string::npos || backend.find("mpi") != std::string::npos) {
    if (me >= static_cast<int>(members.size())) return;
    EXPECT_ERROR(group.new_group(members, {.fails_alone = true}), ErrorKind::usage,
                 "[comm] back end " + backend +
                     " ends all groups of a world with one that fails; expected local, shm or tcp, "
                     "or a group that does not fail alone");
    return;
  }
  for (int way = 0; way < 3; ++way) {
    SCOPED_TRACE(fmt::format("way {}", way));
    if (me < static_cast<int>(members.size())) {
      std::optional<Group> part = group.new_group(members, {.fails_alone = true});
      const auto beside = group.new_group(members, {.fails_alone = true});
      const auto shared = part->allocate({200'000}, at::kFloat).fill_(1);
      part->all_reduce(shared);
      EXPECT_TRUE(shared.eq(part->size()).all().item<bool>());
      // No member fails while another is still in that sum.
      beside.barrier();
      const auto first = fmt::format("rank {}", members.front());
      if (way == 0) fail_by_calls(*part, first);
      if (way == 1) fail_by_a_message(*part, first);
      if (way == 2) fail_by_exception(std::exchange(part, std::nullopt), first);
      if (part) {
        const auto later = error_in([&] { part->barrier(); });
        ASSERT_TRUE(later);
        EXPECT_THAT(later->what(), testing::HasSubstr("unusable since an earlier failure"));
      }
      check_sum(beside, 1, part ? part->size() : beside.size());
    }
    check_sum(group, me, n * (n - 1) / 2);
  }
}

}  // namespace

void conform_in_groups(const Group& group) {
  check_that_others_need_not_come(group);
  check_groups_that_overlap(group);
  check_many_groups(group);
  check_wrong_lists(group);
  check_groups_that_fail_alone(group);
}

}  // namespace troika::comm
