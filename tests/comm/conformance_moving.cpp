#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/comm/conformance.h"
#include "tests/support/errors.h"

namespace troika::comm {

namespace {

at::Tensor moved_values(int rank, int64_t count, at::ScalarType type) {
  return (at::arange(count, at::kLong) * 31 + rank * 7).remainder(101).to(type);
}

void check_broadcast(Group& group) {
  for (int root = 0; root < group.size(); ++root) {
    for (const auto type : {at::kFloat, at::kBFloat16, at::kBool, at::kLong}) {
      for (const int64_t count : {0, 100, 200'000}) {
        auto tensor = moved_values(group.rank(), count, type);
        group.broadcast(tensor, root);
        EXPECT_TRUE(tensor.equal(moved_values(root, count, type)))
            << c10::toString(type) << " x " << count << " from " << root;
      }
    }
  }
  const auto shared = group.allocate({50'000}, at::kDouble);
  shared.fill_(group.rank());
  group.broadcast(shared, group.size() - 1);
  EXPECT_TRUE(shared.eq(group.size() - 1).all().item<bool>());
  auto columns = at::full({6, 4}, group.rank(), at::kFloat).t();
  group.broadcast(columns, 0);
  EXPECT_TRUE(columns.eq(0).all().item<bool>());
}

void check_all_gather(Group& group) {
  const int n = group.size();
  auto all = at::empty({n, 2, 3});
  group.all_gather(all, at::full({2, 3}, group.rank() + 0.5));
  for (int r = 0; r < n; ++r) EXPECT_TRUE(all[r].eq(r + 0.5).all().item<bool>());
  for (const int64_t block : {1, 70'000}) {
    const auto shared = group.allocate({block}, at::kFloat);
    shared.copy_(moved_values(group.rank(), block, at::kFloat));
    auto whole = at::empty({n * block});
    group.all_gather(whole, shared);
    for (int r = 0; r < n; ++r) {
      EXPECT_TRUE(whole.narrow(0, r * block, block).equal(moved_values(r, block, at::kFloat)));
    }
  }
  // Uneven, with a rank that has nothing; small, and too large for one piece.
  for (const int64_t unit : {3, 30'000}) {
    std::vector<int64_t> splits;
    for (int r = 0; r < n; ++r) splits.push_back(r * unit);
    auto whole = at::empty({unit * n * (n - 1) / 2}, at::kLong);
    group.all_gather(whole, moved_values(group.rank(), group.rank() * unit, at::kLong), splits);
    int64_t begin = 0;
    for (int r = 0; r < n; ++r) {
      EXPECT_TRUE(whole.narrow(0, begin, r * unit).equal(moved_values(r, r * unit, at::kLong)));
      begin += r * unit;
    }
  }
}

void check_gather_and_scatter(Group& group) {
  const int n = group.size();
  for (int root = 0; root < n; ++root) {
    at::Tensor whole = group.rank() == root ? at::zeros({n, 40}, at::kHalf) : at::Tensor();
    group.gather(whole, moved_values(group.rank(), 40, at::kHalf), root);
    for (int r = 0; group.rank() == root && r < n; ++r) {
      EXPECT_TRUE(whole[r].equal(moved_values(r, 40, at::kHalf)));
    }
    auto own = at::zeros({40}, at::kHalf);
    group.scatter(own, whole, root);
    EXPECT_TRUE(own.equal(moved_values(group.rank(), 40, at::kHalf)));
  }
}

void check_all_to_all(Group& group) {
  const int n = group.size();
  const int me = group.rank();
  const auto input = at::arange(n, at::kLong) + me * 100;
  auto output = at::zeros({n}, at::kLong);
  group.all_to_all(output, input);
  EXPECT_TRUE(output.equal(at::arange(n, at::kLong) * 100 + me));

  // Rank r sends r + s rows of two to rank s: its own number.
  std::vector<int64_t> out_splits;
  int64_t rows = 0;
  for (int r = 0; r < n; ++r) {
    out_splits.push_back(r + me);
    rows += r + me;
  }
  auto received = at::empty({rows, 2}, at::kFloat);
  group.all_to_all(received, at::full({rows, 2}, me, at::kFloat), out_splits, out_splits);
  int64_t begin = 0;
  for (int r = 0; r < n; ++r) {
    EXPECT_TRUE(received.narrow(0, begin, r + me).eq(r).all().item<bool>());
    begin += r + me;
  }
}

// A tensor must outlive the group of the rank that has sent it.
void check_parts_that_end_early(Group& group) {
  for (int round = 0; round < 3; ++round) {
    auto all = at::zeros({group.size(), 100'000});
    {
      const auto part = *group.split(0);
      part.gather(all, at::full({100'000}, group.rank() + 0.5F), 0);
      part.all_reduce(at::ones({300'000}));
    }
    // Uses the memory that the sub-group has released.
    const auto other = group.allocate({600'000}, at::kFloat);
    other.fill_(-1);
    if (group.rank() == 0) {
      for (int r = 0; r < group.size(); ++r) EXPECT_TRUE(all[r].eq(r + 0.5).all().item<bool>());
    }
  }
}

void check_odd_labels(Group& group) {
  std::string label = "x";
  for (int i = 0; i < 35; ++i) label += "\xc3\xa9";
  group.barrier({.label = label});
  group.barrier({.label = "\xff\xfe"});
}

void check_text(Group& group) {
  const std::string own(static_cast<size_t>(group.rank()) * 10,
                        static_cast<char>('a' + group.rank()));
  const auto all = group.all_gather_text(own);
  ASSERT_EQ(all.size(), static_cast<size_t>(group.size()));
  EXPECT_EQ(all[static_cast<size_t>(group.rank())], own);
  EXPECT_EQ(all[0], "");
  EXPECT_EQ(group.broadcast_text(group.rank() == 0 ? "hello" : "other"), "hello");
}

void check_queued_calls(Group& group) {
  std::vector<at::Tensor> tensors;
  std::vector<Work> work;
  for (int i = 0; i < 20; ++i) {
    tensors.push_back(at::full({1 + i * 1000}, i + group.rank(), at::kDouble));
    work.push_back(group.all_reduce(tensors.back(), ReduceOp::max, {.async_op = true}));
  }
  // Runs after all that is queued.
  auto last = at::full({1}, group.rank(), at::kDouble);
  group.all_reduce(last);
  EXPECT_EQ(last.item<double>(), group.size() * (group.size() - 1) / 2.0);
  for (const auto& w : work) {
    w.wait(Deadline::after(std::chrono::minutes(1)));
    EXPECT_TRUE(w.done());
  }
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(tensors[static_cast<size_t>(i)].eq(i + group.size() - 1).all().item<bool>());
  }
}

void check_split(Group& group) {
  const int n = group.size();
  const int me = group.rank();
  // Odd and even ranks, in reverse order; the last rank takes no part.
  const auto part = group.split(me == n - 1 ? -1 : me % 2, -me);
  EXPECT_EQ(part.has_value(), me != n - 1);
  if (part) {
    const int members = (n - 1 - me % 2 + 1) / 2;
    EXPECT_EQ(part->size(), members);
    EXPECT_EQ(part->rank(), members - 1 - me / 2);
    auto sum = at::full({1000}, me, at::kLong);
    part->all_reduce(sum, ReduceOp::sum, {.async_op = true}).wait();
    int64_t expected = 0;
    for (int r = me % 2; r < n - 1; r += 2) expected += r;
    EXPECT_TRUE(sum.eq(expected).all().item<bool>());
    const auto inner = part->split(0);
    ASSERT_TRUE(inner);
    auto low = at::full({20'000}, me, at::kInt);
    inner->all_reduce(low, ReduceOp::min);
    EXPECT_TRUE(low.eq(me % 2).all().item<bool>());
    auto received = at::zeros({inner->size()}, at::kLong);
    inner->all_gather(received, at::full({1}, me, at::kLong));
    EXPECT_EQ(received[inner->rank()].item<int64_t>(), me);
  }
  // Calls of the whole and of two parts, queued in another order on every rank.
  const auto a = group.split(0);
  const auto b = group.split(0);
  auto x = at::ones({50'000});
  auto y = at::ones({70'000});
  std::vector<Work> work;
  const auto post = [&](const Group& on, const at::Tensor& tensor) {
    work.push_back(on.all_reduce(tensor, ReduceOp::sum, {.async_op = true}));
  };
  if (me % 2 == 0) {
    post(*a, x);
    post(*b, y);
  } else {
    post(*b, y);
    post(*a, x);
  }
  group.barrier();
  for (const auto& w : work) w.wait();
  EXPECT_TRUE(x.eq(n).all().item<bool>());
  EXPECT_TRUE(y.eq(n).all().item<bool>());
}

// Makes, one after the other, more groups than can exist at a time.
void check_many_splits(Group& group) {
  for (int i = 0; i < 520; ++i) {
    const auto part = *group.split(i % 2 == 0 ? 0 : group.rank());
    EXPECT_EQ(part.size(), i % 2 == 0 ? group.size() : 1);
  }
}

void check_wrong_arguments(Group& group) {
  const int n = group.size();
  EXPECT_ERROR(group.broadcast(at::zeros({1}), n), ErrorKind::usage,
               "[comm] the root is not in the group; got " + std::to_string(n) +
                   ", expected 0 to " + std::to_string(n - 1));
  EXPECT_ERROR(group.all_gather(at::zeros({n}), at::zeros({2})), ErrorKind::usage,
               "[comm] all_gather's input does not hold one rank's block; got Float x 2, expected "
               "Float x 1");
  EXPECT_ERROR(group.send(at::zeros({1}), group.rank()), ErrorKind::usage,
               "[comm] no such peer for a message; got " + std::to_string(group.rank()) +
                   ", expected another rank of 0 to " + std::to_string(n - 1));
}

}  // namespace

void conform_in_moving(Group& group) {
  check_broadcast(group);
  check_all_gather(group);
  check_gather_and_scatter(group);
  check_all_to_all(group);
  conform_in_messages(group);
  check_parts_that_end_early(group);
  check_odd_labels(group);
  check_text(group);
  check_queued_calls(group);
  check_split(group);
  if (group.size() <= 3) check_many_splits(group);
  conform_in_groups(group);
  check_wrong_arguments(group);
}

}  // namespace troika::comm
