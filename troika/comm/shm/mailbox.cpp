#include "troika/comm/shm/mailbox.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "troika/base/error.h"

namespace troika::comm::shm {

namespace {

constexpr size_t kSmallestBlock = 256;
// Blocks smaller than this are cut from pieces of this size.
constexpr size_t kPieceBytes = size_t{1} << 20;

enum : uint32_t { kPassed = 1, kReceived = 2 };

}  // namespace

// Lies in shared memory in front of the bytes of a message.
struct alignas(64) Mailbox::Block {
  std::atomic<Ref> next;
  // When the receiver has both passed it in the list and got its bytes, it may be used again.
  std::atomic<uint32_t> done;
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

Mailbox::~Mailbox() {
  for (const auto& piece : pieces_) arena_->give_back(piece);
}

Mailbox::Sent Mailbox::new_block(Outgoing& outgoing, size_t bytes) {
  reclaim(outgoing);
  const size_t size = std::bit_ceil(std::max(bytes + sizeof(Block), kSmallestBlock));
  const auto size_class = static_cast<size_t>(std::countr_zero(size));
  const std::lock_guard lock(pool_mutex_);
  auto& blocks = free_[size_class];
  if (blocks.empty()) {
    const auto& piece = pieces_.emplace_back(arena_->take(std::max(size, kPieceBytes)));
    for (size_t at = 0; at + size <= piece.bytes; at += size) {
      blocks.push_back({reinterpret_cast<Block*>(piece.data + at), piece.ref + at, size_class});
      if (size >= kPieceBytes) break;
    }
  }
  const Sent chosen = blocks.back();
  blocks.pop_back();
  return chosen;
}

void Mailbox::reclaim(Outgoing& outgoing) {
  auto& under_way = outgoing.under_way;
  while (!under_way.empty() &&
         under_way.front().block->done.load(std::memory_order_acquire) == (kPassed | kReceived)) {
    const std::lock_guard lock(pool_mutex_);
    free_[under_way.front().size_class].push_back(under_way.front());
    under_way.pop_front();
  }
}

void Mailbox::send(int peer, uint32_t tag, const void* data, size_t bytes) {
  auto& outgoing = outgoing_[static_cast<size_t>(peer)];
  const std::lock_guard lock(outgoing.mutex);
  const Sent sent = new_block(outgoing, bytes);
  Block& block = *sent.block;
  block.next.store(0, std::memory_order_relaxed);
  block.done.store(0, std::memory_order_relaxed);
  block.tag = tag;
  block.bytes = bytes;
  if (bytes > 0) std::memcpy(block.data(), data, bytes);
  auto& link = outgoing.last ? outgoing.last->next : board_->first_block(board_->rank(), peer);
  link = sent.ref;
  outgoing.last = &block;
  outgoing.under_way.push_back(sent);
  board_->ring(peer);
}

bool Mailbox::look(int peer, Incoming& incoming) {
  bool found = false;
  while (true) {
    auto& link = incoming.last ? incoming.last->next : board_->first_block(peer, board_->rank());
    const Ref ref = link;
    if (ref == 0) return found;
    if (incoming.last) incoming.last->done.fetch_or(kPassed, std::memory_order_release);
    incoming.last =
        reinterpret_cast<Block*>(arena_->at(arena_ranks_[static_cast<size_t>(peer)], ref));
    incoming.waiting.push_back(incoming.last);
    found = true;
  }
}

Mailbox::Block* Mailbox::find(Incoming& incoming, uint32_t tag) {
  const auto block =
      std::ranges::find_if(incoming.waiting, [&](const Block* b) { return b->tag == tag; });
  if (block == incoming.waiting.end()) return nullptr;
  Block* const found = *block;
  incoming.waiting.erase(block);
  return found;
}

void Mailbox::receive(int peer, uint32_t tag, void* data, size_t bytes, Deadline deadline,
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
      block = find(incoming, tag);
    }
    // Another thread of this rank may sleep on what was just taken off the list.
    if (news) board_->ring(board_->rank());
    left = !block && was_left;
    return block || left;
  };
  board_->await(arrived, deadline, fmt::format("a message from rank {}", peer));
  if (left) throw Error("comm", ErrorKind::peer, {.what = fmt::format("rank {} has left", peer)});
  TROIKA_CHECK(block->bytes == bytes, "a message of another size than was expected");
  if (bytes > 0) std::memcpy(data, block->data(), bytes);
  block->done.fetch_or(kReceived, std::memory_order_release);
}

}  // namespace troika::comm::shm
