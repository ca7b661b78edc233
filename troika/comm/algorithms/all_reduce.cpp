#include "troika/comm/algorithms/all_reduce.h"

#include <algorithm>
#include <bit>

#include "troika/comm/algorithms/basic.h"
#include "troika/comm/algorithms/ring.h"

namespace troika::comm {

namespace {

// The bytes [begin, end) of a buffer.
struct Range {
  size_t begin;
  size_t end;
};

ByteSpan part(ByteSpan whole, Range range) {
  return {whole.data + range.begin, range.end - range.begin};
}

// Splits a range at the middle element.
std::pair<Range, Range> halves(Range range, size_t element) {
  const size_t middle = range.begin + (range.end - range.begin) / element / 2 * element;
  return {{range.begin, middle}, {middle, range.end}};
}

void send_to(const RankSubset& subset, int member, ByteSpan span) {
  Transfers sends(subset);
  sends.send(member, span);
  sends.wait();
}

void receive_from(const RankSubset& subset, int member, ByteSpan span) {
  Transfers arriving(subset);
  arriving.receive(member, span);
  arriving.wait();
}

// Sends one span and reduces another that arrives from the same member. The lower member's values
// are the first operand, so that both members get the same bits for the same elements.
void exchange_and_reduce(const RankSubset& subset, ArrivalReducer& reducer, int member,
                         ByteSpan out, ByteSpan into) {
  reducer.start(member, into,
                member < subset.me ? ArrivalReducer::Order::arriving_first
                                   : ArrivalReducer::Order::mine_first);
  Transfers sends(subset);
  sends.send(member, out);
  reducer.finish();
  sends.wait();
}

// Handles the members beyond the largest power of two: of the first 2r members, the odd ones are
// inactive after a pre-step and get the result at the end.
struct Fold {
  explicit Fold(const RankSubset& subset)
      : power(static_cast<int>(std::bit_floor(static_cast<unsigned>(subset.size())))),
        excess(subset.size() - power),
        folded(subset.me < 2 * excess),
        active(!folded || subset.me % 2 == 0),
        position(folded ? subset.me / 2 : subset.me - excess) {}

  int member_at(int p) const { return p < excess ? 2 * p : p + excess; }

  const int power;
  const int excess;
  const bool folded;   // takes part in the pre-step
  const bool active;   // takes part between pre-step and the end
  const int position;  // among the active members
};

// At the end of a fold: the even member sends the result to its odd neighbour.
void unfold(const RankSubset& subset, const Fold& fold, ByteSpan whole) {
  if (!fold.folded) return;
  if (fold.active) {
    send_to(subset, subset.me + 1, whole);
  } else {
    receive_from(subset, subset.me - 1, whole);
  }
}

}  // namespace

void ring_all_reduce(const RankSubset& subset, ByteSpan whole, const Elements& elements) {
  const auto blocks = even_blocks(whole, elements.size(), subset.size());
  if (!elements.wants_all_terms()) return ring_reduce_and_gather(subset, blocks, elements);
  flat_reduce_scatter(subset, blocks, elements);
  ring_all_gather(subset, blocks);
}

void recursive_doubling_all_reduce(const RankSubset& subset, ByteSpan whole,
                                   const Elements& average) {
  const Elements elements = average.divided_ahead(whole);
  const Fold fold(subset);
  ArrivalReducer reducer(subset, elements);
  if (fold.folded) {
    if (fold.active) {
      reducer.receive(subset.me + 1, whole);
    } else {
      send_to(subset, subset.me - 1, whole);
    }
  }
  for (int distance = 1; fold.active && distance < fold.power; distance <<= 1) {
    // The data must not change while it is sent.
    const std::vector<char> mine(whole.data, whole.data + whole.bytes);
    exchange_and_reduce(subset, reducer, fold.member_at(fold.position ^ distance),
                        {const_cast<char*>(mine.data()), mine.size()}, whole);
  }
  if (fold.active) elements.finish(whole);
  unfold(subset, fold, whole);
}

void rabenseifner_all_reduce(const RankSubset& subset, ByteSpan whole, const Elements& average) {
  const Elements elements = average.divided_ahead(whole);
  const Fold fold(subset);
  ArrivalReducer reducer(subset, elements);
  Range own{0, whole.bytes};
  if (fold.folded) {
    const auto [low, high] = halves(own, elements.size());
    if (fold.active) {
      exchange_and_reduce(subset, reducer, subset.me + 1, part(whole, high), part(whole, low));
      receive_from(subset, subset.me + 1, part(whole, high));
    } else {
      exchange_and_reduce(subset, reducer, subset.me - 1, part(whole, low), part(whole, high));
      send_to(subset, subset.me - 1, part(whole, high));
    }
  }
  struct Round {
    int member;
    Range kept;
    Range given;
  };
  std::vector<Round> rounds;
  for (int distance = fold.power / 2; fold.active && distance > 0; distance /= 2) {
    auto [kept, given] = halves(own, elements.size());
    if (fold.position & distance) std::swap(kept, given);
    rounds.push_back({fold.member_at(fold.position ^ distance), kept, given});
    exchange_and_reduce(subset, reducer, rounds.back().member, part(whole, given),
                        part(whole, kept));
    own = kept;
  }
  if (fold.active) elements.finish(part(whole, own));
  for (auto round = rounds.rbegin(); round != rounds.rend(); ++round) {
    Transfers both(subset);
    both.receive(round->member, part(whole, round->given));
    both.send(round->member, part(whole, round->kept));
    both.wait();
  }
  unfold(subset, fold, whole);
}

}  // namespace troika::comm
