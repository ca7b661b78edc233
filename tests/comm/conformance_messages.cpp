#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/comm/conformance.h"
#include "tests/support/errors.h"
#include "troika/comm/edge.h"
#include "troika/comm/edge_memory.h"

namespace troika::comm {

namespace {

at::Tensor message_values(int rank, int64_t count, at::ScalarType type) {
  return (at::arange(count, at::kLong) * 31 + rank * 7).remainder(101).to(type);
}

void check_messages(Group& group) {
  const int n = group.size();
  if (n == 1) return;
  const int next = (group.rank() + 1) % n;
  const int previous = (group.rank() + n - 1) % n;
  // Received in another order than sent; one of them large; a collective between.
  const auto large = at::full({400'000}, group.rank(), at::kDouble);
  const auto small = at::full({3}, group.rank(), at::kInt);
  auto large_in = at::zeros({400'000}, at::kDouble);
  auto small_in = at::zeros({2, 3}, at::kInt).narrow(0, 0, 1);
  const auto first = group.send(large, next, 5);
  const auto second = group.send(small.view({1, 3}), next, 6);
  const auto small_arrives = group.receive(small_in, previous, 6);
  const auto large_arrives = group.receive(large_in, previous, 5);
  group.barrier();
  small_arrives.wait();
  large_arrives.wait();
  first.wait();
  second.wait();
  EXPECT_TRUE(large_in.eq(previous).all().item<bool>());
  EXPECT_TRUE(small_in.eq(previous).all().item<bool>());
  // Messages with one tag come in the order of sending.
  for (int i = 0; i < 3; ++i) group.send(at::full({1}, i, at::kLong), next);
  for (int i = 0; i < 3; ++i) {
    auto in = at::zeros({1}, at::kLong);
    group.receive(in, previous).wait();
    EXPECT_EQ(in.item<int64_t>(), i);
  }
}

// Ranks may wait in any order, because all messages are in flight from the start.
void check_messages_wait_in_any_order(Group& group) {
  const int n = group.size();
  if (n == 1) return;
  const int next = (group.rank() + 1) % n;
  const int previous = (group.rank() + n - 1) % n;
  const auto out = at::full({300'000}, group.rank(), at::kDouble);
  auto in = at::zeros({300'000}, at::kDouble);
  const auto sending = group.send(out, next, 3);
  const auto arriving = group.receive(in, previous, 3);
  sending.wait();
  arriving.wait();
  EXPECT_TRUE(in.eq(previous).all().item<bool>());
  // Several of one tag, and of several sizes, waited for in reverse.
  std::vector<at::Tensor> tensors;
  std::vector<Work> work;
  for (const int64_t count : {5, 50'000, 2}) {
    group.send(at::full({count}, group.rank() + count, at::kInt), next, 4);
    tensors.push_back(at::zeros({count}, at::kInt));
    work.push_back(group.receive(tensors.back(), previous, 4));
  }
  for (size_t i = 3; i-- > 0;) {
    work[i].wait();
    EXPECT_TRUE(tensors[i].eq(previous + tensors[i].numel()).all().item<bool>()) << i;
  }
}

// A receive whose Work was dropped still takes its message, so that the next receive gets the next
// message.
void check_dropped_receives(Group& group) {
  const int n = group.size();
  if (n == 1) return;
  const int next = (group.rank() + 1) % n;
  const int previous = (group.rank() + n - 1) % n;
  for (const int64_t count : {10, 50'000}) {
    const auto dropped = at::zeros({count}, at::kInt);
    const auto kept = at::zeros({count}, at::kInt);
    group.receive(dropped, previous, 8);
    const auto arriving = group.receive(kept, previous, 8);
    const auto first = group.send(at::full({count}, 1, at::kInt), next, 8);
    const auto second = group.send(at::full({count}, 2, at::kInt), next, 8);
    arriving.wait();
    EXPECT_TRUE(kept.eq(2).all().item<bool>());
    first.wait();
    second.wait();
  }
}

// Around a ring, with a shape that changes between large and small ones, and back.
void check_edges(Group& group) {
  const int n = group.size();
  if (n == 1) return;
  const int next = (group.rank() + 1) % n;
  const int previous = (group.rank() + n - 1) % n;
  const auto to = group.edge_to(next, 2, {.depth = 4});
  const auto from = group.edge_from(previous, 2, {.depth = 4});
  const auto tensor = [](int rank, int i) {
    constexpr int64_t kSizes[] = {100'000, 100'000, 70'001, 3, 100'000, 0, 3000, 3000, 70'001};
    const auto type = i % 18 < 9 ? at::kFloat : at::kLong;
    return message_values(rank + i, kSizes[i % 9], type).view({-1, 1});
  };
  constexpr int kTensors = 40, kAhead = 3;
  for (int i = 0; i < kTensors + kAhead; ++i) {
    if (i < kTensors) to.send(tensor(group.rank(), i));
    if (i < kAhead) continue;
    const auto received = from.receive();
    EXPECT_TRUE(received.equal(tensor(previous, i - kAhead))) << "tensor " << i - kAhead;
    // A collective and a message of the same tag between.
    if (i % 10 == 0) group.barrier();
    if (i % 10 == 5) {
      const auto message = at::zeros({1}, at::kLong);
      const auto sent = group.send(at::full({1}, i, at::kLong), next, 2);
      group.receive(message, previous, 2).wait();
      sent.wait();
      EXPECT_EQ(message.item<int64_t>(), i);
    }
  }
  EXPECT_LE(from.buffer_bytes(), receiving_edge_bytes({.tensor_bytes = 800'000, .depth = 4}).sum());
}

// All ranks to all, large and small, in orders that differ between ranks.
void check_batches(Group& group) {
  const int n = group.size(), me = group.rank();
  std::vector<PointToPoint> messages;
  for (int r = 0; r < n; ++r) {
    if (r == me) continue;
    for (const int64_t count : {3, 200'000}) {
      const int tag = count == 3 ? 1 : 2;
      const auto sent = message_values(me * n + r, count, at::kInt);
      messages.push_back({Direction::send, sent, r, tag});
      messages.push_back({Direction::receive, at::zeros({count}, at::kInt), r, tag});
    }
  }
  if (me % 2 == 1) std::ranges::reverse(messages);
  group.batch(messages, "all to all").wait();
  for (const auto& [direction, tensor, r, tag] : messages) {
    if (direction == Direction::send) continue;
    EXPECT_TRUE(tensor.equal(message_values(r * n + me, tensor.numel(), at::kInt))) << "from " << r;
  }
}

// Rank 0 receives the messages of each other rank in the order of sending.
void check_receives_from_any(const Group& group) {
  constexpr int kMessages = 5;
  if (group.size() == 1) return;
  const auto tensor = at::full({2'000}, 0, at::kLong);
  const auto backend = group.backend();
  if (backend != "local" && backend != "shm" && backend != "tcp" && backend != "mpi") {
    EXPECT_ERROR(group.receive_any(tensor), ErrorKind::usage,
                 "[comm] back end " + std::string(backend) +
                     " cannot receive from any rank; expected local, shm, tcp or mpi, or a rank to "
                     "receive from");
    return;
  }
  std::vector<int> heard(static_cast<size_t>(group.size()));
  for (int i = 0; group.rank() > 0 && i < kMessages; ++i) {
    group.send(at::full({2'000}, group.rank() * 10 + i, at::kLong), 0, 3).wait();
  }
  for (int i = 0; group.rank() == 0 && i < kMessages * (group.size() - 1); ++i) {
    const auto from = static_cast<size_t>(group.receive_any(tensor, 3));
    EXPECT_EQ(tensor[1999].item<int64_t>(), static_cast<int64_t>(from) * 10 + heard.at(from)++);
  }
  for (size_t r = 1; group.rank() == 0 && r < heard.size(); ++r) EXPECT_EQ(heard[r], kMessages);
}

}  // namespace

void conform_in_messages(Group& group) {
  check_messages(group);
  check_messages_wait_in_any_order(group);
  check_dropped_receives(group);
  check_edges(group);
  check_batches(group);
  check_receives_from_any(group);
  check_receives_from_any(*group.split(0, -group.rank()));
}

}  // namespace troika::comm
