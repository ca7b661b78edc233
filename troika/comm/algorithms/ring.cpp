#include "troika/comm/algorithms/ring.h"

#include <algorithm>
#include <array>
#include <deque>

namespace troika::comm {

namespace {

// One segment from the previous member, and how it is processed.
struct Hop {
  enum class Kind {
    reduce,    // add this member's terms to it
    complete,  // the same, and the result is then complete
    gather,    // the segment is a result
  };
  Kind kind;
  ByteSpan segment;
  bool is_sent_on;
};

// The hops of one member, in the order in which their segments arrive.
class Ring {
 public:
  Ring(const RankSubset& subset, Elements elements) : subset_(subset), elements_(elements) {}

  // All reductions must be added before gathered blocks.
  void add(Hop::Kind kind, ByteSpan block, bool is_sent_on) {
    for (const ByteSpan segment : segments(block)) hops_.push_back({kind, segment, is_sent_on});
    if (kind != Hop::Kind::gather) reductions_ = hops_.size();
  }

  // Sends `first`, then processes the hops. Blocks until all hops are done.
  void run(ByteSpan first) {
    const size_t wanted = std::min(kWindow, reductions_) * kSegmentBytes;
    scratch_ = std::make_unique_for_overwrite<char[]>(wanted);
    // Announced before receives are posted: a neighbour that is notified of a receive sends at
    // once, and this rank's own notice that it is ready for `first` would wait behind that data.
    send(first);
    for (const Hop& hop : hops_) {
      post();
      arriving_.front()->wait(subset_.deadline);
      arriving_.pop_front();
      take(hop);
    }
    sends_.wait();
  }

 private:
  int neighbour(int distance) const { return modulo(subset_.me + distance, subset_.size()); }
  char* place(size_t hop) const { return scratch_.get() + hop % kWindow * kSegmentBytes; }
  void send(ByteSpan span) { sends_.send(neighbour(1), span); }

  // Starts the receives that may be in flight now: at least one.
  void post() {
    for (; posted_ < hops_.size() && arriving_.size() < kWindow && may_post(); ++posted_) {
      const Hop& hop = hops_[posted_];
      char* const into = posted_ < reductions_ ? place(posted_) : hop.segment.data;
      arriving_.push_back(start_receive(subset_, neighbour(-1), {into, hop.segment.bytes}));
    }
  }

  // Results overwrite the terms that were sent first, in the order in which these were sent, and
  // only after the terms have been sent.
  bool may_post() {
    if (reductions_ == 0 || posted_ < reductions_) return true;
    const size_t sent = posted_ - reductions_;
    if (!sends_.is_over(sent) && arriving_.empty()) sends_.wait_for(sent);
    return sends_.is_over(sent);
  }

  void take(const Hop& hop) {
    if (hop.kind != Hop::Kind::gather) {
      void* const mine = hop.segment.data;
      const std::array<const void*, 2> terms{place(taken_), mine};
      reduce({&mine, 1}, terms, elements_.count(hop.segment), elements_.type, elements_.op);
      if (hop.kind == Hop::Kind::complete) elements_.finish(hop.segment);
    }
    ++taken_;
    if (hop.is_sent_on) send(hop.segment);
  }

  const RankSubset& subset_;
  const Elements elements_;
  std::vector<Hop> hops_;
  size_t reductions_ = 0;  // number of reduce and complete hops
  size_t posted_ = 0;      // number of hops whose receive has been started
  size_t taken_ = 0;
  Transfers sends_{subset_};
  std::unique_ptr<char[]> scratch_;
  std::deque<std::unique_ptr<Channel::Arrival>> arriving_;  // receives into scratch_: destroyed
                                                            // before it
};

const ByteSpan& at_of(const std::vector<ByteSpan>& blocks, int index) {
  return blocks[static_cast<size_t>(modulo(index, static_cast<int>(blocks.size())))];
}

// In step s the block arrives that this member sends in step s + 1.
void add_reductions(Ring& ring, const std::vector<ByteSpan>& blocks, int me,
                    bool is_result_sent_on) {
  const int steps = static_cast<int>(blocks.size()) - 1;
  for (int step = 0; step < steps; ++step) {
    const bool is_last = step == steps - 1;
    ring.add(is_last ? Hop::Kind::complete : Hop::Kind::reduce, at_of(blocks, me - 2 - step),
             !is_last || is_result_sent_on);
  }
}

void add_gathers(Ring& ring, const std::vector<ByteSpan>& blocks, int me) {
  const int steps = static_cast<int>(blocks.size()) - 1;
  for (int step = 0; step < steps; ++step) {
    ring.add(Hop::Kind::gather, at_of(blocks, me - 1 - step), step < steps - 1);
  }
}

}  // namespace

void ring_reduce_scatter(const RankSubset& subset, const std::vector<ByteSpan>& blocks,
                         const Elements& elements) {
  if (subset.size() == 1) return elements.finish(blocks.front());
  Ring ring(subset, elements);
  add_reductions(ring, blocks, subset.me, /*is_result_sent_on=*/false);
  ring.run(at_of(blocks, subset.me - 1));
}

void ring_all_gather(const RankSubset& subset, const std::vector<ByteSpan>& blocks) {
  if (subset.size() == 1) return;
  Ring ring(subset, Elements{});
  add_gathers(ring, blocks, subset.me);
  ring.run(at_of(blocks, subset.me));
}

void ring_reduce_and_gather(const RankSubset& subset, const std::vector<ByteSpan>& blocks,
                            const Elements& elements) {
  if (subset.size() == 1) return elements.finish(blocks.front());
  Ring ring(subset, elements);
  add_reductions(ring, blocks, subset.me, /*is_result_sent_on=*/true);
  add_gathers(ring, blocks, subset.me);
  ring.run(at_of(blocks, subset.me - 1));
}

}  // namespace troika::comm
