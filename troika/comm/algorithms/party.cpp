#include "troika/comm/algorithms/party.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace troika::comm {

Party Party::part(const std::vector<int>& members) const {
  Party chosen{impl, deadline, traffic, {}, 0, tag};
  for (const int member : members) {
    if (member == me) chosen.me = chosen.size();
    chosen.ranks.push_back(ranks[static_cast<size_t>(member)]);
  }
  return chosen;
}

Party everyone(GroupImpl& impl, Deadline deadline, Traffic& traffic) {
  Party all{impl,        deadline,      traffic, std::vector<int>(static_cast<size_t>(impl.size())),
            impl.rank(), kCollectiveTag};
  std::iota(all.ranks.begin(), all.ranks.end(), 0);
  return all;
}

int modulo(int value, int n) {
  return (value % n + n) % n;
}

std::vector<Span> even_blocks(Span whole, size_t element, int n) {
  const size_t count = whole.bytes / element;
  const auto parts = static_cast<size_t>(n);
  std::vector<Span> blocks;
  char* at = whole.data;
  for (size_t i = 0; i < parts; ++i) {
    const size_t bytes = (count / parts + (i < count % parts ? 1 : 0)) * element;
    blocks.push_back({at, bytes});
    at += bytes;
  }
  return blocks;
}

std::vector<Span> blocks_of(Span whole, size_t element, const std::vector<int64_t>& counts) {
  std::vector<Span> blocks;
  char* at = whole.data;
  for (const int64_t count : counts) {
    blocks.push_back({at, static_cast<size_t>(count) * element});
    at += blocks.back().bytes;
  }
  return blocks;
}

namespace {

std::vector<Span> segments(Span whole) {
  std::vector<Span> parts;
  for (size_t at = 0; at < whole.bytes; at += kSegmentBytes) {
    parts.push_back({whole.data + at, std::min(kSegmentBytes, whole.bytes - at)});
  }
  return parts;
}

std::unique_ptr<Transfer> start_receive(const Party& party, int member, Span span) {
  return party.impl.receive(party.ranks[static_cast<size_t>(member)], party.tag, span.data,
                            span.bytes);
}

}  // namespace

void Transfers::send(int member, Span whole) {
  const int rank = party_.ranks[static_cast<size_t>(member)];
  const auto& nodes = party_.impl.station().nodes;
  const bool far =
      nodes[static_cast<size_t>(rank)] != nodes[static_cast<size_t>(party_.impl.rank())];
  for (const Span part : segments(whole)) {
    started_.push_back(party_.impl.send(rank, party_.tag, part.data, part.bytes));
    party_.traffic.messages += 1;
    party_.traffic.bytes += part.bytes;
    if (!far) continue;
    party_.traffic.messages_between_nodes += 1;
    party_.traffic.bytes_between_nodes += part.bytes;
  }
}

void Transfers::receive(int member, Span whole) {
  for (const Span part : segments(whole)) started_.push_back(start_receive(party_, member, part));
}

void Transfers::wait() {
  for (const auto& transfer : started_) transfer->wait(party_.deadline);
  started_.clear();
}

void Reducer::start(int member, Span whole, Order order) {
  order_ = order;
  parts_ = segments(whole);
  if (scratch_.size() < whole.bytes) scratch_.resize(whole.bytes);
  for (const Span part : parts_) {
    arriving_.push_back(
        start_receive(party_, member, {scratch_.data() + (part.data - whole.data), part.bytes}));
  }
}

void Reducer::finish() {
  const char* theirs = scratch_.data();
  for (size_t i = 0; i < parts_.size(); ++i) {
    arriving_[i]->wait(party_.deadline);
    void* mine = parts_[i].data;
    const std::array<const void*, 2> terms = order_ == Order::mine_first
                                                 ? std::array<const void*, 2>{mine, theirs}
                                                 : std::array<const void*, 2>{theirs, mine};
    reduce({&mine, 1}, terms, elements_.count(parts_[i]), elements_.type, elements_.op);
    theirs += parts_[i].bytes;
  }
  arriving_.clear();
}

}  // namespace troika::comm
