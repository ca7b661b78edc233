#include "troika/comm/collectives.h"

#include <algorithm>
#include <array>
#include <vector>

namespace troika::comm {

namespace {

// Large enough that a message's overhead does not show, small enough to reduce one segment in
// cache while the next one arrives.
constexpr size_t kSegmentBytes = size_t{1} << 20;

struct Span {
  char* data;
  size_t bytes;
};

// Elements [begin, end) of block `index` when `count` elements are cut into n blocks whose sizes
// differ by at most one.
Span block(void* data, size_t count, size_t element, int n, int index) {
  const auto parts = static_cast<size_t>(n);
  const auto i = static_cast<size_t>(index);
  const size_t small = count / parts;
  const size_t larger = count % parts;
  const size_t begin = i * small + std::min(i, larger);
  const size_t length = small + (i < larger ? 1 : 0);
  return {static_cast<char*>(data) + begin * element, length * element};
}

std::vector<Span> segments(Span whole) {
  std::vector<Span> parts;
  for (size_t at = 0; at < whole.bytes; at += kSegmentBytes) {
    parts.push_back({whole.data + at, std::min(kSegmentBytes, whole.bytes - at)});
  }
  return parts;
}

int modulo(int value, int n) {
  return (value % n + n) % n;
}

// Both directions are started before either is waited for, so a ring cannot lock up.
std::vector<std::unique_ptr<Transfer>> start_sends(const Channel& channel, int peer, Span whole) {
  std::vector<std::unique_ptr<Transfer>> sends;
  for (const Span part : segments(whole)) {
    sends.push_back(channel.impl.send(peer, channel.tag, part.data, part.bytes));
  }
  return sends;
}

void wait_all(const std::vector<std::unique_ptr<Transfer>>& transfers, Deadline deadline) {
  for (const auto& transfer : transfers) transfer->wait(deadline);
}

// Receives the segments of `whole` one ahead of the one being reduced.
void receive_and_reduce(const Channel& channel, int peer, Span whole, c10::ScalarType type,
                        ReduceOp op, std::array<std::vector<char>, 2>& scratch) {
  const auto parts = segments(whole);
  std::array<std::unique_ptr<Transfer>, 2> arriving;
  const auto start = [&](size_t i) {
    if (i < parts.size()) {
      arriving[i % 2] =
          channel.impl.receive(peer, channel.tag, scratch[i % 2].data(), parts[i].bytes);
    }
  };
  start(0);
  for (size_t i = 0; i < parts.size(); ++i) {
    start(i + 1);
    arriving[i % 2]->wait(channel.deadline);
    reduce_into(parts[i].data, scratch[i % 2].data(), parts[i].bytes / c10::elementSize(type), type,
                op);
  }
}

void receive_whole(const Channel& channel, int peer, Span whole) {
  std::vector<std::unique_ptr<Transfer>> receives;
  for (const Span part : segments(whole)) {
    receives.push_back(channel.impl.receive(peer, channel.tag, part.data, part.bytes));
  }
  wait_all(receives, channel.deadline);
}

}  // namespace

void ring_all_reduce(const Channel& channel, void* data, size_t count, c10::ScalarType type,
                     ReduceOp op) {
  const int n = channel.impl.size();
  const int rank = channel.impl.rank();
  if (n == 1 || count == 0) return;
  const int next = modulo(rank + 1, n);
  const int previous = modulo(rank - 1, n);
  const size_t element = c10::elementSize(type);
  const auto part = [&](int index) { return block(data, count, element, n, modulo(index, n)); };

  std::array<std::vector<char>, 2> scratch;
  for (auto& buffer : scratch) buffer.resize(std::min(kSegmentBytes, part(0).bytes));
  for (int step = 0; step < n - 1; ++step) {
    const auto sends = start_sends(channel, next, part(rank - step));
    receive_and_reduce(channel, previous, part(rank - step - 1), type, op, scratch);
    wait_all(sends, channel.deadline);
  }
  // This rank now owns block rank + 1, complete.
  if (op == ReduceOp::average) {
    const Span own = part(rank + 1);
    divide(own.data, own.bytes / element, type, n);
  }
  for (int step = 0; step < n - 1; ++step) {
    const auto sends = start_sends(channel, next, part(rank + 1 - step));
    receive_whole(channel, previous, part(rank - step));
    wait_all(sends, channel.deadline);
  }
}

void tree_broadcast(const Channel& channel, void* data, size_t bytes, int root) {
  const int n = channel.impl.size();
  if (bytes == 0) return;
  const int position = modulo(channel.impl.rank() - root, n);
  const Span whole{static_cast<char*>(data), bytes};
  int mask = 1;
  for (; mask < n; mask <<= 1) {
    if (position & mask) {
      receive_whole(channel, modulo(position - mask + root, n), whole);
      break;
    }
  }
  std::vector<std::unique_ptr<Transfer>> sends;
  for (mask >>= 1; mask > 0; mask >>= 1) {
    if (position + mask >= n) continue;
    for (auto& send : start_sends(channel, modulo(position + mask + root, n), whole)) {
      sends.push_back(std::move(send));
    }
  }
  wait_all(sends, channel.deadline);
}

void ring_all_gather(const Channel& channel, void* data, size_t block_bytes) {
  const int n = channel.impl.size();
  const int rank = channel.impl.rank();
  if (n == 1 || block_bytes == 0) return;
  const auto part = [&](int index) {
    return Span{static_cast<char*>(data) + static_cast<size_t>(modulo(index, n)) * block_bytes,
                block_bytes};
  };
  for (int step = 0; step < n - 1; ++step) {
    const auto sends = start_sends(channel, modulo(rank + 1, n), part(rank - step));
    receive_whole(channel, modulo(rank - 1, n), part(rank - step - 1));
    wait_all(sends, channel.deadline);
  }
}

void dissemination_barrier(const Channel& channel) {
  const int n = channel.impl.size();
  const int rank = channel.impl.rank();
  for (int distance = 1; distance < n; distance <<= 1) {
    char out = 0;
    char in = 0;
    const auto send = channel.impl.send(modulo(rank + distance, n), channel.tag, &out, 1);
    const auto receive = channel.impl.receive(modulo(rank - distance, n), channel.tag, &in, 1);
    receive->wait(channel.deadline);
    send->wait(channel.deadline);
  }
}

}  // namespace troika::comm
