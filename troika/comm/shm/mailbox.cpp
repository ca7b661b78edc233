#include "troika/comm/shm/mailbox.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "troika/base/error.h"

namespace troika::comm::shm {

namespace {

// Blocks are multiples of the one or, from that size on, of the other.
constexpr size_t kSmallUnit = 256;
constexpr size_t kLargeUnit = size_t{64} << 10;
// Pieces that blocks are cut from grow with what there is, so that a few serve for any amount.
constexpr size_t kSmallestPiece = size_t{1} << 20;
constexpr size_t kLargestPiece = size_t{256} << 20;
// How far back finished blocks are looked for behind one that is not.
constexpr size_t kLookBack = 64;

size_t block_size(size_t bytes) {
  const size_t unit = bytes < kLargeUnit ? kSmallUnit : kLargeUnit;
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace

// Lies in shared memory in front of the bytes of a message.
struct alignas(64) Mailbox::Block {
  Ref older;  // in the list
  // The receiver has taken it off the list and got its bytes: it may be used again.
  std::atomic<bool> received;
  uint32_t tag;
  uint64_t bytes;

  char* data() { return reinterpret_cast<char*>(this + 1); }
};

Mailbox::Mailbox(std::shared_ptr<Board> board, std::shared_ptr<Arena> arena,
                 std::vector<int> arena_ranks)
    : board_(std::move(board)),
      arena_(std::move(arena)),
      arena_ranks_(std::move(arena_ranks)),
      outgoing_(arena_ranks_.size()),
      incoming_(arena_ranks_.size()) {}

void Mailbox::release() {
  for (const auto& piece : pieces_) arena_->give_back(piece);
}

bool Mailbox::all_received() {
  for (auto& outgoing : outgoing_) {
    const std::lock_guard lock(outgoing.mutex);
    for (const Sent& sent : outgoing.under_way) {
      if (!sent.block->received) return false;
    }
  }
  return true;
}

Mailbox::Sent Mailbox::new_block(Outgoing& outgoing, size_t bytes) {
  reclaim(outgoing);
  const size_t size = block_size(bytes + sizeof(Block));
  const std::lock_guard lock(pool_mutex_);
  if (auto& blocks = free_[size]; !blocks.empty()) {
    const Sent chosen = blocks.back();
    blocks.pop_back();
    return chosen;
  }
  if (pieces_.empty() || used_of_last_ + size > pieces_.back().bytes) {
    const size_t piece = std::clamp(pieces_bytes_, kSmallestPiece, kLargestPiece);
    pieces_.push_back(arena_->take(std::max(size, piece)));
    pieces_bytes_ += pieces_.back().bytes;
    used_of_last_ = 0;
  }
  const size_t at = std::exchange(used_of_last_, used_of_last_ + size);
  const auto& [data, ref, _] = pieces_.back();
  return {reinterpret_cast<Block*>(data + at), ref + at, size};
}

void Mailbox::reclaim(Outgoing& outgoing) {
  auto& under_way = outgoing.under_way;
  const size_t looked_at = std::min(under_way.size(), kLookBack);
  const auto end = under_way.begin() + static_cast<std::ptrdiff_t>(looked_at);
  const auto finished = std::stable_partition(
      under_way.begin(), end, [](const Sent& sent) { return !sent.block->received; });
  const std::lock_guard lock(pool_mutex_);
  for (auto sent = finished; sent != end; ++sent) free_[sent->size].push_back(*sent);
  under_way.erase(finished, end);
}

void Mailbox::send(int peer, uint32_t tag, const void* data, size_t bytes) {
  auto& outgoing = outgoing_[static_cast<size_t>(peer)];
  const std::lock_guard lock(outgoing.mutex);
  const Sent sent = new_block(outgoing, bytes);
  Block& block = *sent.block;
  block.received.store(false, std::memory_order_relaxed);
  block.tag = tag;
  block.bytes = bytes;
  if (bytes > 0) std::memcpy(block.data(), data, bytes);
  auto& newest = board_->newest_block(board_->rank(), peer);
  block.older = newest;
  while (!newest.compare_exchange_weak(block.older, sent.ref)) {
  }
  outgoing.under_way.push_back(sent);
  board_->ring(peer);
}

bool Mailbox::look(int peer, Incoming& incoming) {
  auto& newest = board_->newest_block(peer, board_->rank());
  if (newest == 0) return false;
  std::vector<Block*> blocks;
  for (Ref ref = newest.exchange(0); ref != 0; ref = blocks.back()->older) {
    blocks.push_back(
        reinterpret_cast<Block*>(arena_->at(arena_ranks_[static_cast<size_t>(peer)], ref)));
  }
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
    auto& stream = incoming.streams[(*block)->tag];
    stream.waiting[stream.arrived++] = *block;
  }
  return true;
}

uint64_t Mailbox::expect(int peer, uint32_t tag) {
  auto& incoming = incoming_[static_cast<size_t>(peer)];
  const std::lock_guard lock(incoming.mutex);
  return incoming.streams[tag].expected++;
}

void Mailbox::receive(int peer, uint32_t tag, uint64_t number, void* data, size_t bytes,
                      Deadline deadline, const std::string& who,
                      const std::function<bool()>& has_left) {
  auto& incoming = incoming_[static_cast<size_t>(peer)];
  Block* block = nullptr;
  bool left = false;
  const auto arrived = [&] {
    const bool was_left = has_left();
    bool news = false;
    {
      const std::lock_guard lock(incoming.mutex);
      news = look(peer, incoming);
      if (const auto found = incoming.streams[tag].waiting.extract(number)) block = found.mapped();
    }
    // Another thread of this rank may sleep on what was just taken off the list.
    if (news) board_->ring(board_->rank());
    left = !block && was_left;
    return block || left;
  };
  board_->await(arrived, deadline, "a message from " + who);
  if (left) throw Error("comm", ErrorKind::peer, {.what = who + " has left the group"});
  TROIKA_CHECK(block->bytes <= bytes, "a message is longer than its receive");
  if (block->bytes > 0) std::memcpy(data, block->data(), block->bytes);
  block->received = true;
  board_->ring(peer);
}

}  // namespace troika::comm::shm
