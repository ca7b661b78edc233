#include "troika/comm/algorithms/rank_subset.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

namespace troika::comm {

RankSubset RankSubset::select(const std::vector<int>& members) const {
  RankSubset chosen{channel, deadline, traffic, {}, 0, lane};
  for (const int member : members) {
    if (member == me) chosen.me = chosen.size();
    chosen.ranks.push_back(ranks[static_cast<size_t>(member)]);
  }
  return chosen;
}

RankSubset everyone(Channel& channel, Deadline deadline, Traffic& traffic) {
  const GroupInfo& info = channel.info();
  RankSubset all{channel, deadline, traffic, std::vector<int>(static_cast<size_t>(info.size)),
                 info.rank};
  std::iota(all.ranks.begin(), all.ranks.end(), 0);
  return all;
}

int modulo(int value, int n) {
  return (value % n + n) % n;
}

void copy(ByteSpan from, ByteSpan into) {
  if (from.bytes > 0 && from.data != into.data) std::memcpy(into.data, from.data, from.bytes);
}

std::vector<ByteSpan> even_blocks(ByteSpan whole, size_t element, int n) {
  const size_t count = whole.bytes / element;
  const auto parts = static_cast<size_t>(n);
  std::vector<ByteSpan> blocks;
  char* at = whole.data;
  for (size_t i = 0; i < parts; ++i) {
    const size_t bytes = (count / parts + (i < count % parts ? 1 : 0)) * element;
    blocks.push_back({at, bytes});
    at += bytes;
  }
  return blocks;
}

std::vector<ByteSpan> blocks_of(ByteSpan whole, size_t element,
                                const std::vector<int64_t>& counts) {
  std::vector<ByteSpan> blocks;
  char* at = whole.data;
  for (const int64_t count : counts) {
    blocks.push_back({at, static_cast<size_t>(count) * element});
    at += blocks.back().bytes;
  }
  return blocks;
}

std::vector<ByteSpan> segments(ByteSpan whole) {
  std::vector<ByteSpan> parts;
  size_t at = 0;
  do {
    parts.push_back({whole.data + at, std::min(kSegmentBytes, whole.bytes - at)});
    at += kSegmentBytes;
  } while (at < whole.bytes);
  return parts;
}

std::unique_ptr<Channel::Arrival> start_receive(const RankSubset& subset, int member,
                                                ByteSpan segment) {
  return subset.channel.receive(subset.rank_of(member), subset.lane, segment.data, segment.bytes);
}

void Transfers::send(int member, ByteSpan whole) {
  const int rank = subset_.rank_of(member);
  const GroupInfo& info = subset_.channel.info();
  const bool far =
      info.nodes[static_cast<size_t>(rank)] != info.nodes[static_cast<size_t>(info.rank)];
  for (const ByteSpan part : segments(whole)) {
    sending_.push_back(subset_.channel.send(rank, subset_.lane, part.data, part.bytes));
    if (part.bytes == 0) continue;
    subset_.traffic.messages += 1;
    subset_.traffic.bytes += part.bytes;
    if (!far) continue;
    subset_.traffic.messages_between_nodes += 1;
    subset_.traffic.bytes_between_nodes += part.bytes;
  }
}

void Transfers::receive(int member, ByteSpan whole) {
  for (const ByteSpan part : segments(whole))
    arriving_.push_back(start_receive(subset_, member, part));
}

// Verifies all frames before it waits for the first payload, so that payloads of several members
// arrive concurrently.
void Transfers::wait() {
  for (const auto& arrival : arriving_) arrival->verify(subset_.deadline);
  for (const auto& arrival : arriving_) arrival->wait(subset_.deadline);
  for (size_t sent = 0; sent < sending_.size(); ++sent) wait_for(sent);
  arriving_.clear();
  sending_.clear();
}

void Transfers::wait_for(size_t sent) {
  if (sending_[sent]) sending_[sent]->wait(subset_.deadline);
  sending_[sent].reset();
}

void ArrivalReducer::start(int member, ByteSpan whole, Order order) {
  member_ = member;
  order_ = order;
  parts_ = segments(whole);
  const size_t wanted = std::min(whole.bytes, kWindow * kSegmentBytes);
  if (scratch_bytes_ < wanted) {
    scratch_ = std::make_unique_for_overwrite<char[]>(wanted);
    scratch_bytes_ = wanted;
  }
  for (size_t i = 0; i < std::min(kWindow, parts_.size()); ++i) start_part(i);
}

char* ArrivalReducer::place(size_t part) const {
  return scratch_.get() + part % kWindow * kSegmentBytes;
}

void ArrivalReducer::start_part(size_t part) {
  arriving_.push_back(start_receive(subset_, member_, {place(part), parts_[part].bytes}));
}

void ArrivalReducer::finish() {
  for (size_t i = 0; i < parts_.size(); ++i) {
    arriving_.front()->wait(subset_.deadline);
    arriving_.pop_front();
    void* mine = parts_[i].data;
    const void* theirs = place(i);
    const std::array<const void*, 2> terms = order_ == Order::mine_first
                                                 ? std::array<const void*, 2>{mine, theirs}
                                                 : std::array<const void*, 2>{theirs, mine};
    reduce({&mine, 1}, terms, elements_.count(parts_[i]), elements_.type, elements_.op);
    if (i + kWindow < parts_.size()) start_part(i + kWindow);
  }
}

void Collector::start(const std::vector<int>& members, ByteSpan own) {
  own_ = own;
  terms_.clear();
  scratch_.resize(std::max(scratch_.size(), own.bytes * members.size()));
  char* at = scratch_.data();
  for (const int member : members) {
    arriving_.receive(member, {at, own.bytes});
    terms_.push_back(at);
    at += own.bytes;
  }
  const auto before = std::ranges::lower_bound(members, subset_.me) - members.begin();
  terms_.insert(terms_.begin() + before, own.data);
}

void Collector::finish() {
  arriving_.wait();
  void* into = own_.data;
  reduce({&into, 1}, terms_, elements_.count(own_), elements_.type, elements_.op,
         elements_.divisor);
}

}  // namespace troika::comm
