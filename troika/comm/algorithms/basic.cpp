#include "troika/comm/algorithms/basic.h"

#include "troika/comm/algorithms/ring.h"

namespace troika::comm {

void tree_broadcast(const Party& party, Span whole, int root) {
  const int n = party.size();
  const int position = modulo(party.me - root, n);
  int mask = 1;
  for (; mask < n; mask <<= 1) {
    if ((position & mask) == 0) continue;
    Transfers arriving(party);
    arriving.receive(modulo(position - mask + root, n), whole);
    arriving.wait();
    break;
  }
  Transfers sends(party);
  for (mask >>= 1; mask > 0; mask >>= 1) {
    if (position + mask < n) sends.send(modulo(position + mask + root, n), whole);
  }
  sends.wait();
}

void tree_reduce(const Party& party, Span whole, int root, const Elements& elements) {
  const int n = party.size();
  const int position = modulo(party.me - root, n);
  Reducer reducer(party, elements);
  for (int mask = 1; mask < n; mask <<= 1) {
    if (position & mask) {
      Transfers sends(party);
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
void direct_reduce_scatter(const Party& party, const std::vector<Span>& blocks,
                           const Elements& elements) {
  const int n = party.size();
  std::vector<int> others;
  for (int member = 0; member < n; ++member) {
    if (member != party.me) others.push_back(member);
  }
  Collector collector(party, elements);
  collector.start(others, blocks[static_cast<size_t>(party.me)]);
  Transfers sends(party);
  for (int step = 1; step < n; ++step) {
    const int to = modulo(party.me + step, n);
    sends.send(to, blocks[static_cast<size_t>(to)]);
  }
  collector.finish();
  sends.wait();
}

}  // namespace

void flat_reduce_scatter(const Party& party, const std::vector<Span>& blocks,
                         const Elements& elements) {
  if (elements.wants_all_terms()) {
    direct_reduce_scatter(party, blocks, elements);
  } else {
    ring_reduce_scatter(party, blocks, elements);
  }
}

void linear_gather(const Party& party, Span own, const std::vector<Span>& blocks, int root) {
  Transfers transfers(party);
  if (party.me != root) {
    transfers.send(root, own);
  } else {
    for (int member = 0; member < party.size(); ++member) {
      const Span block = blocks[static_cast<size_t>(member)];
      if (member == root) {
        copy(own, block);
      } else {
        transfers.receive(member, block);
      }
    }
  }
  transfers.wait();
}

void linear_scatter(const Party& party, Span own, const std::vector<Span>& blocks, int root) {
  Transfers transfers(party);
  if (party.me != root) {
    transfers.receive(root, own);
  } else {
    for (int member = 0; member < party.size(); ++member) {
      const Span block = blocks[static_cast<size_t>(member)];
      if (member == root) {
        copy(block, own);
      } else {
        transfers.send(member, block);
      }
    }
  }
  transfers.wait();
}

void dissemination_barrier(const Party& party) {
  for (int distance = 1; distance < party.size(); distance <<= 1) {
    Transfers both(party);
    both.send(modulo(party.me + distance, party.size()), {});
    both.receive(modulo(party.me - distance, party.size()), {});
    both.wait();
  }
}

void pairwise_all_to_all(const Party& party, const std::vector<Span>& in,
                         const std::vector<Span>& out) {
  const int n = party.size();
  copy(in[static_cast<size_t>(party.me)], out[static_cast<size_t>(party.me)]);
  for (int step = 1; step < n; ++step) {
    const int to = modulo(party.me + step, n);
    const int from = modulo(party.me - step, n);
    Transfers both(party);
    both.receive(from, out[static_cast<size_t>(from)]);
    both.send(to, in[static_cast<size_t>(to)]);
    both.wait();
  }
}

}  // namespace troika::comm
