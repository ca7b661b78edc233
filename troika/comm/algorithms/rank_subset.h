// The building blocks of collective algorithms: a set of ranks, pieces of a buffer, and counted
// messages between the ranks.
#pragma once

#include <c10/core/ScalarType.h>

#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <vector>

#include "troika/comm/call/reduce.h"
#include "troika/comm/messages/channel.h"

namespace troika::comm {

// Counts the data sent by collectives. May be read while they run.
struct Traffic {
  std::atomic<uint64_t> messages = 0;
  std::atomic<uint64_t> bytes = 0;
  std::atomic<uint64_t> messages_between_nodes = 0;
  std::atomic<uint64_t> bytes_between_nodes = 0;
};

struct ByteSpan {
  char* data = nullptr;
  size_t bytes = 0;
};

// The ranks that take part in an algorithm. Members are numbered from 0; `me` is this rank's
// number. Every member must make the same calls in the same order.
struct RankSubset {
  Channel& channel;
  Deadline deadline;
  Traffic& traffic;
  std::vector<int> ranks;  // of the group, by member
  int me;
  // The lane of the messages; some algorithms use several streams between two members.
  uint32_t lane = 0;

  int size() const { return static_cast<int>(ranks.size()); }
  int rank_of(int member) const { return ranks[static_cast<size_t>(member)]; }
  // Returns the subset of `members`, which include this rank.
  RankSubset select(const std::vector<int>& members) const;
};
// Returns the subset of all ranks of the group, in their order.
RankSubset everyone(Channel& channel, Deadline deadline, Traffic& traffic);

// Type and operation of a reduction; the type is one that reduce() accepts. Complete results are
// divided by `divisor`, which makes an average.
struct Elements {
  c10::ScalarType type;
  ReduceOp op;
  int divisor = 1;

  size_t size() const { return c10::elementSize(type); }
  size_t count(ByteSpan span) const { return span.bytes / size(); }
  bool is_half() const {
    return type == c10::ScalarType::Half || type == c10::ScalarType::BFloat16;
  }
  // The sum of integers may overflow their type, so an average of integers is computed in one step.
  bool is_integer_average() const {
    return op == ReduceOp::average && c10::isIntegralType(type, /*includeBool=*/false);
  }
  // Whether reduce() must get all terms at once, because partial sums would be rounded or overflow.
  bool wants_all_terms() const { return is_half() || is_integer_average(); }
  // For reductions in levels: halves are divided at the first level, so that no partial sum of an
  // average overflows; other types at the last level.
  Elements first_level() const { return {type, op, is_half() ? divisor : 1}; }
  Elements last_level() const { return {type, op, is_half() ? 1 : divisor}; }
  void finish(ByteSpan span) const {
    if (divisor != 1) divide(span.data, count(span), type, divisor);
  }
  // For reductions in many steps: divides the terms before they are summed if first_level() does,
  // and returns the Elements for the remaining steps.
  Elements divided_ahead(ByteSpan terms) const {
    first_level().finish(terms);
    return last_level();
  }
};

using layout::kSegmentBytes;

// The number of segments received at a time: small enough that a call allocates no memory, and more
// than the segments that queue in this rank's socket, on a slow link, ahead of the notice that it
// is ready for the next segment.
inline constexpr size_t kWindow = 8;

int modulo(int value, int n);

// Copies `from` to `into`. Both have the same size, and are equal or do not overlap.
void copy(ByteSpan from, ByteSpan into);

// Splits `whole` into n blocks whose sizes differ by at most one element.
std::vector<ByteSpan> even_blocks(ByteSpan whole, size_t element, int n);
// Splits `whole` into one block per count.
std::vector<ByteSpan> blocks_of(ByteSpan whole, size_t element, const std::vector<int64_t>& counts);

// Splits `whole` into at least one segment of at most kSegmentBytes. An empty block has one empty
// segment, so that its receiver also verifies that the sender is in its call.
std::vector<ByteSpan> segments(ByteSpan whole);

// Starts receiving one segment.
std::unique_ptr<Channel::Arrival> start_receive(const RankSubset& subset, int member,
                                                ByteSpan segment);

// Transfers that are started one by one and waited for together.
class Transfers {
 public:
  explicit Transfers(const RankSubset& subset) : subset_(subset) {}

  // Start sending or receiving `whole`, segment by segment.
  void send(int member, ByteSpan whole);
  void receive(int member, ByteSpan whole);
  void wait();

  // Whether segment `sent` was sent and its memory may be overwritten. Segments are numbered from 0
  // since the last wait(). Returns false also if this cannot be known before wait_for(), which
  // blocks, has returned.
  bool is_over(size_t sent) const {
    return sent < sending_.size() && (!sending_[sent] || sending_[sent]->done());
  }
  void wait_for(size_t sent);

 private:
  const RankSubset& subset_;
  std::vector<std::unique_ptr<Channel::Arrival>> arriving_;
  std::vector<std::unique_ptr<Transfer>> sending_;
};

// Reduces what arrives from one member, segment by segment. The order says which operand comes
// first. All ranks that compute the same block must use the same order, to get the same bits.
class ArrivalReducer {
 public:
  ArrivalReducer(const RankSubset& subset, const Elements& elements)
      : subset_(subset), elements_(elements) {}

  enum class Order { mine_first, arriving_first };
  // Starts receiving data from the member and reducing it into `whole`. Call this before sending
  // long messages to the same member: on some transports, the member is otherwise told only after
  // these messages that this rank is ready to receive.
  void start(int member, ByteSpan whole, Order order = Order::mine_first);
  // Blocks until the reduction is done.
  void finish();
  void receive(int member, ByteSpan whole, Order order = Order::mine_first) {
    start(member, whole, order);
    finish();
  }

 private:
  char* place(size_t part) const;
  void start_part(size_t part);

  const RankSubset& subset_;
  const Elements elements_;
  int member_ = 0;
  Order order_ = Order::mine_first;
  std::vector<ByteSpan> parts_;
  std::unique_ptr<char[]> scratch_;
  size_t scratch_bytes_ = 0;
  std::deque<std::unique_ptr<Channel::Arrival>> arriving_;  // receives into scratch_: destroyed
                                                            // before it
};

// Receives one span from several members and reduces all terms at once, in the order of members:
// half-precision types are rounded once.
class Collector {
 public:
  Collector(const RankSubset& subset, const Elements& elements)
      : subset_(subset), elements_(elements) {}

  // Starts reducing `own` with what `members` send. `members` are ascending and do not include this
  // member.
  void start(const std::vector<int>& members, ByteSpan own);
  // Blocks until the reduction is done.
  void finish();

 private:
  const RankSubset& subset_;
  const Elements elements_;
  ByteSpan own_;
  std::vector<const void*> terms_;
  std::vector<char> scratch_;
  Transfers arriving_{subset_};  // receives into scratch_: destroyed before it
};

}  // namespace troika::comm
