// The ground that algorithms of collectives run on: some ranks of a group, pieces of a buffer, and
// the messages between the ranks, counted.
#pragma once

#include <c10/core/ScalarType.h>

#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <vector>

#include "troika/comm/channel.h"
#include "troika/comm/reduce.h"

namespace troika::comm {

// Counts the data sent by collectives; may be read while they run.
struct Traffic {
  std::atomic<uint64_t> messages = 0;
  std::atomic<uint64_t> bytes = 0;
  std::atomic<uint64_t> messages_between_nodes = 0;
  std::atomic<uint64_t> bytes_between_nodes = 0;
};

struct Span {
  char* data = nullptr;
  size_t bytes = 0;
};

// Members of a party are numbered from 0; `me` is this rank's number. Every member must make the
// same calls in the same order.
struct Party {
  Channel& channel;
  Deadline deadline;
  Traffic& traffic;
  std::vector<int> ranks;  // of the group, by member
  int me;
  // The lane of the messages: some algorithms have several streams between two members.
  uint32_t lane = 0;

  int size() const { return static_cast<int>(ranks.size()); }
  int rank_of(int member) const { return ranks[static_cast<size_t>(member)]; }
  // The party of `members`, of which this rank is one.
  Party part(const std::vector<int>& members) const;
};
// All ranks of the group in their order.
Party everyone(Channel& channel, Deadline deadline, Traffic& traffic);

// The elements of a reduction, which are whole and of a type that reduce() takes, and its
// operation. Complete results are divided by `divisor`; that is how an average is made.
struct Elements {
  c10::ScalarType type;
  ReduceOp op;
  int divisor = 1;

  size_t size() const { return c10::elementSize(type); }
  size_t count(Span span) const { return span.bytes / size(); }
  bool is_half() const {
    return type == c10::ScalarType::Half || type == c10::ScalarType::BFloat16;
  }
  // The sum of integers may not fit into their type, so an average of them is made in one step.
  bool is_integer_average() const {
    return op == ReduceOp::average && c10::isIntegralType(type, /*includeBool=*/false);
  }
  // Whether all terms are to be reduced at once, by reduce(): partial sums would be rounded, or
  // overflow.
  bool wants_all_terms() const { return is_half() || is_integer_average(); }
  // For what is reduced by levels: halves are divided at the first, so that no partial sum of an
  // average leaves their range, other types at the last.
  Elements first_level() const { return {type, op, is_half() ? divisor : 1}; }
  Elements last_level() const { return {type, op, is_half() ? 1 : divisor}; }
  void finish(Span span) const {
    if (divisor != 1) divide(span.data, count(span), type, divisor);
  }
  // For reductions in many steps: has terms divided before they are added up where first_level()
  // does, and returns how to go on.
  Elements divided_ahead(Span terms) const {
    first_level().finish(terms);
    return last_level();
  }
};

using layout::kSegmentBytes;

// Segments that are received at a time: so few that a call needs no fresh memory, and more than lie
// in front of the word for the next one in this rank's own socket, where a link is slow.
inline constexpr size_t kWindow = 8;

int modulo(int value, int n);

// The spans have as many bytes, and are apart or the same.
void copy(Span from, Span into);

// `whole` cut into n blocks of elements whose sizes differ by at most one element.
std::vector<Span> even_blocks(Span whole, size_t element, int n);
// `whole` cut into one block per count.
std::vector<Span> blocks_of(Span whole, size_t element, const std::vector<int64_t>& counts);

// `whole` cut into segments of at most kSegmentBytes, of which there is at least one: the receiver
// of an empty block, too, finds out whether the sender is in its call.
std::vector<Span> segments(Span whole);

// Starts receiving one segment.
std::unique_ptr<Channel::Arrival> start_receive(const Party& party, int member, Span segment);

// Transfers under way that end together.
class Transfers {
 public:
  explicit Transfers(const Party& party) : party_(party) {}

  // Starts sending or receiving `whole`, segment by segment.
  void send(int member, Span whole);
  void receive(int member, Span whole);
  void wait();

  // Whether a segment was sent and its memory may be written to; segments are numbered from 0 since
  // the last wait(). False where that cannot be told before wait_for() has returned, which blocks.
  bool is_over(size_t sent) const {
    return sent < sending_.size() && (!sending_[sent] || sending_[sent]->done());
  }
  void wait_for(size_t sent);

 private:
  const Party& party_;
  std::vector<std::unique_ptr<Channel::Arrival>> arriving_;
  std::vector<std::unique_ptr<Transfer>> sending_;
};

// Reduces what arrives from a member, segment by segment. The order tells which values stand first
// in the operation; all ranks that compute the same block must have the same, for the same bits.
class Reducer {
 public:
  Reducer(const Party& party, const Elements& elements) : party_(party), elements_(elements) {}

  enum class Order { mine_first, arriving_first };
  // Says that `whole` is to be reduced with what that member sends. Start this before sending much
  // to the same member: word that this rank is ready would else wait behind it on some transports.
  void start(int member, Span whole, Order order = Order::mine_first);
  // Blocks until that is done.
  void finish();
  void receive(int member, Span whole, Order order = Order::mine_first) {
    start(member, whole, order);
    finish();
  }

 private:
  char* place(size_t part) const;
  void start_part(size_t part);

  const Party& party_;
  const Elements elements_;
  int member_ = 0;
  Order order_ = Order::mine_first;
  std::vector<Span> parts_;
  std::unique_ptr<char[]> scratch_;
  size_t scratch_bytes_ = 0;
  std::deque<std::unique_ptr<Channel::Arrival>> arriving_;  // into scratch_: goes first
};

// Receives what several members send for one span, and reduces all of it at once, in the order of
// members: half-precision types are rounded once.
class Collector {
 public:
  Collector(const Party& party, const Elements& elements) : party_(party), elements_(elements) {}

  // Says that `own` is to be reduced with what those members send, of which this is none. They are
  // in ascending order.
  void start(const std::vector<int>& members, Span own);
  // Blocks until that is done.
  void finish();

 private:
  const Party& party_;
  const Elements elements_;
  Span own_;
  std::vector<const void*> terms_;
  std::vector<char> scratch_;
  Transfers arriving_{party_};  // into scratch_: goes first
};

}  // namespace troika::comm
