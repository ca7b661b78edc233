#include "troika/comm/algorithms/basic.h"

#include "troika/comm/algorithms/ring.h"

namespace troika::comm {

void tree_broadcast(const RankSubset& subset, ByteSpan whole, int root) {
  const int n = subset.size();
  const int position = modulo(subset.me - root, n);
  int mask = 1;
  for (; mask < n; mask <<= 1) {
    if ((position & mask) == 0) continue;
    Transfers arriving(subset);
    arriving.receive(modulo(position - mask + root, n), whole);
    arriving.wait();
    break;
  }
  Transfers sends(subset);
  for (mask >>= 1; mask > 0; mask >>= 1) {
    if (position + mask < n) sends.send(modulo(position + mask + root, n), whole);
  }
  sends.wait();
}

void tree_reduce(const RankSubset& subset, ByteSpan whole, int root, const Elements& elements) {
  const int n = subset.size();
  const int position = modulo(subset.me - root, n);
  ArrivalReducer reducer(subset, elements);
  for (int mask = 1; mask < n; mask <<= 1) {
    if (position & mask) {
      Transfers sends(subset);
      sends.send(modulo(position - mask + root, n), whole);
      sends.wait();
      return;
    }
    if (position + mask < n) reducer.receive(modulo(position + mask + root, n), whole);
  }
  elements.finish(whole);
}

namespace {

// Sends every block straight to its owner, which reduces all terms at once, in the order of
// members.
void direct_reduce_scatter(const RankSubset& subset, const std::vector<ByteSpan>& blocks,
                           const Elements& elements) {
  const int n = subset.size();
  std::vector<int> others;
  for (int member = 0; member < n; ++member) {
    if (member != subset.me) others.push_back(member);
  }
  Collector collector(subset, elements);
  collector.start(others, blocks[static_cast<size_t>(subset.me)]);
  Transfers sends(subset);
  for (int step = 1; step < n; ++step) {
    const int to = modulo(subset.me + step, n);
    sends.send(to, blocks[static_cast<size_t>(to)]);
  }
  collector.finish();
  sends.wait();
}

}  // namespace

void flat_reduce_scatter(const RankSubset& subset, const std::vector<ByteSpan>& blocks,
                         const Elements& elements) {
  if (elements.wants_all_terms()) {
    direct_reduce_scatter(subset, blocks, elements);
  } else {
    ring_reduce_scatter(subset, blocks, elements);
  }
}

void linear_gather(const RankSubset& subset, ByteSpan own, const std::vector<ByteSpan>& blocks,
                   int root) {
  Transfers transfers(subset);
  if (subset.me != root) {
    transfers.send(root, own);
  } else {
    for (int member = 0; member < subset.size(); ++member) {
      const ByteSpan block = blocks[static_cast<size_t>(member)];
      if (member == root) {
        copy(own, block);
      } else {
        transfers.receive(member, block);
      }
    }
  }
  transfers.wait();
}

void linear_scatter(const RankSubset& subset, ByteSpan own, const std::vector<ByteSpan>& blocks,
                    int root) {
  Transfers transfers(subset);
  if (subset.me != root) {
    transfers.receive(root, own);
  } else {
    for (int member = 0; member < subset.size(); ++member) {
      const ByteSpan block = blocks[static_cast<size_t>(member)];
      if (member == root) {
        copy(block, own);
      } else {
        transfers.send(member, block);
      }
    }
  }
  transfers.wait();
}

void dissemination_barrier(const RankSubset& subset) {
  for (int distance = 1; distance < subset.size(); distance <<= 1) {
    Transfers both(subset);
    both.send(modulo(subset.me + distance, subset.size()), {});
    both.receive(modulo(subset.me - distance, subset.size()), {});
    both.wait();
  }
}

void pairwise_all_to_all(const RankSubset& subset, const std::vector<ByteSpan>& in,
                         const std::vector<ByteSpan>& out) {
  const int n = subset.size();
  copy(in[static_cast<size_t>(subset.me)], out[static_cast<size_t>(subset.me)]);
  for (int step = 1; step < n; ++step) {
    const int to = modulo(subset.me + step, n);
    const int from = modulo(subset.me - step, n);
    Transfers both(subset);
    both.receive(from, out[static_cast<size_t>(from)]);
    both.send(to, in[static_cast<size_t>(to)]);
    both.wait();
  }
}

}  // namespace troika::comm
