#include "troika/comm/shm/mailbox.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "troika/base/error.h"

namespace troika::comm::shm {

namespace {

// Blocks of at most this size are kept for the next message, up to kKeptBytes of them; the others
// go back to the arena.
constexpr size_t kSmallBlock = size_t{64} << 10;
constexpr size_t kKeptBytes = size_t{4} << 20;
// How many blocks under way are looked at for a message that is sent.
constexpr size_t kLooks = 64;

}  // namespace

// Lies in shared memory in front of the bytes of a message.
struct alignas(64) Mailbox::Block {
  Ref older;  // in the list
  // The receiver has taken it off the list and got its bytes: it may be used again.
  std::atomic<bool> received;
  uint32_t tag;
  uint64_t bytes;

  char* data() { return reinterpret_cast<char*>(this + 1); }
  static Block& in(const Arena::Piece& piece) { return *reinterpret_cast<Block*>(piece.data); }
};

Mailbox::Mailbox(std::shared_ptr<Board> board, std::shared_ptr<Arena> arena,
                 std::vector<int> arena_ranks)
    : board_(std::move(board)),
      arena_(std::move(arena)),
      arena_ranks_(std::move(arena_ranks)),
      outgoing_(arena_ranks_.size()),
      incoming_(arena_ranks_.size()) {}

void Mailbox::release() {
  for (auto& outgoing : outgoing_) {
    for (const auto& sent : outgoing.under_way) arena_->give_back(sent.block);
  }
  for (const auto& [_, blocks] : free_) {
    for (const auto& block : blocks) arena_->give_back(block);
  }
}

bool Mailbox::all_received() {
  for (auto& outgoing : outgoing_) {
    const std::lock_guard lock(outgoing.mutex);
    for (const auto& sent : outgoing.under_way) {
      if (!Block::in(sent.block).received) return false;
    }
  }
  return true;
}

Arena::Piece Mailbox::new_block(Outgoing& outgoing, size_t bytes) {
  reclaim(outgoing);
  size_t size = bytes + sizeof(Block);
  if (size > kSmallBlock) {
    reclaim_others(outgoing);
    return arena_->take(size);
  }
  size = BuddyAllocator::block_size(size);
  const auto cached = [&]() -> std::optional<Arena::Piece> {
    const std::lock_guard lock(pool_mutex_);
    auto& blocks = free_[size];
    if (blocks.empty()) return std::nullopt;
    const auto block = blocks.back();
    blocks.pop_back();
    kept_bytes_ -= size;
    return block;
  };
  if (const auto block = cached()) return *block;
  reclaim_others(outgoing);
  if (const auto block = cached()) return *block;
  return arena_->take(size);
}

void Mailbox::reclaim(Outgoing& outgoing) {
  auto& under_way = outgoing.under_way;
  size_t& at = outgoing.next_looked_at;
  for (size_t looks = std::min(under_way.size(), kLooks); looks > 0; --looks) {
    if (at >= under_way.size()) at = 0;
    if (!Block::in(under_way[at].block).received) {
      ++at;
      continue;
    }
    const auto [block, received] = std::exchange(under_way[at], under_way.back());
    under_way.pop_back();
    if (received) *received = true;
    if (!keep(block)) arena_->give_back(block);
  }
}

bool Mailbox::keep(const Arena::Piece& block) {
  const std::lock_guard lock(pool_mutex_);
  if (block.bytes > kSmallBlock || kept_bytes_ + block.bytes > kKeptBytes) return false;
  free_[block.bytes].push_back(block);
  kept_bytes_ += block.bytes;
  return true;
}

void Mailbox::reclaim_others(const Outgoing& outgoing) {
  for (auto& other : outgoing_) {
    if (&other == &outgoing) continue;
    // A thread that holds it is sending, and reclaims by itself.
    const std::unique_lock lock(other.mutex, std::try_to_lock);
    if (lock) reclaim(other);
  }
}

void Mailbox::send(int peer, uint32_t tag, const void* data, size_t bytes, Received received) {
  auto& outgoing = outgoing_[static_cast<size_t>(peer)];
  const std::lock_guard lock(outgoing.mutex);
  const Arena::Piece piece = new_block(outgoing, bytes);
  Block& block = Block::in(piece);
  block.received.store(false, std::memory_order_relaxed);
  block.tag = tag;
  block.bytes = bytes;
  if (bytes > 0) std::memcpy(block.data(), data, bytes);
  auto& newest = board_->newest_block(board_->rank(), peer);
  block.older = newest;
  while (!newest.compare_exchange_weak(block.older, piece.ref)) {
  }
  outgoing.under_way.push_back({piece, std::move(received)});
  board_->ring(peer);
}

bool Mailbox::is_received(int peer, const std::atomic<bool>& received) {
  if (received) return true;
  auto& outgoing = outgoing_[static_cast<size_t>(peer)];
  const std::lock_guard lock(outgoing.mutex);
  reclaim(outgoing);
  return received;
}

void Mailbox::await_received(int peer, const std::atomic<bool>& received, Deadline deadline,
                             const std::function<std::string()>& who,
                             const std::function<bool()>& has_left) {
  bool left = false;
  const auto is_over = [&] {
    const bool was_left = has_left();
    const bool taken = is_received(peer, received);
    left = !taken && was_left;
    return taken || left;
  };
  board_->await(is_over, deadline, [&] { return who() + " to receive a message"; });
  if (left) throw Error("comm", ErrorKind::peer, {.what = who() + " has left the group"});
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

void Mailbox::forget(int peer, uint32_t tag, uint64_t number) {
  auto& incoming = incoming_[static_cast<size_t>(peer)];
  const std::lock_guard lock(incoming.mutex);
  auto& expected = incoming.streams[tag].expected;
  if (expected == number + 1) --expected;
}

std::optional<int> Mailbox::await_any(uint32_t tag, int first, Deadline deadline,
                                      const std::function<bool()>& hopeless) {
  const int size = static_cast<int>(incoming_.size());
  std::optional<int> from;
  bool over = false;
  const auto is_over = [&] {
    over = hopeless();
    bool news = false;
    for (int i = 0; i < size && !from; ++i) {
      const int peer = (first + i) % size;
      if (peer == board_->rank()) continue;
      auto& incoming = incoming_[static_cast<size_t>(peer)];
      const std::lock_guard lock(incoming.mutex);
      news = look(peer, incoming) || news;
      const auto& stream = incoming.streams[tag];
      if (stream.waiting.contains(stream.expected)) from = peer;
    }
    // Another thread of this rank may sleep on what was just taken off a list.
    if (news) board_->ring(board_->rank());
    return from || over;
  };
  board_->await(is_over, deadline, [] { return "a message from any rank"; });
  return from;
}

void Mailbox::receive(int peer, uint32_t tag, uint64_t number, void* data, size_t bytes,
                      Deadline deadline, const std::function<std::string()>& who,
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
  board_->await(arrived, deadline, [&] { return "a message from " + who(); });
  if (left) throw Error("comm", ErrorKind::peer, {.what = who() + " has left the group"});
  TROIKA_CHECK(block->bytes <= bytes, "a message is longer than its receive");
  if (block->bytes > 0) std::memcpy(data, block->data(), block->bytes);
  block->received = true;
  board_->ring(peer);
}

}  // namespace troika::comm::shm
