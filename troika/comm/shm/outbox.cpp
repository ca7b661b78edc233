#include "troika/comm/shm/outbox.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "troika/base/error.h"

namespace troika::comm::shm {

namespace {

// How many blocks in flight a send checks for blocks to reclaim.
constexpr size_t kLooks = 64;

Block& block_in(const Arena::Piece& piece) {
  return *reinterpret_cast<Block*>(piece.data);
}

bool is_received_in(const Arena::Piece& piece) {
  return block_in(piece).envelope.stamp != 0;
}

void copy(char* to, std::string_view bytes) {
  if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
}

// Takes the cache lines of these bytes from the receiver's cache, in the background. Nobody reads
// them. Prefetches for writing did not do this in measurements.
void own_lines(char* data, size_t bytes) {
  constexpr size_t kLine = 64;
  for (size_t at = 0; at < bytes; at += kLine) static_cast<volatile char*>(data)[at] = 0;
}

// Writes everything except the stamp.
void write(Envelope& message, const Outbox::Letter& letter, uint64_t number, bool is_cell) {
  message.number = number;
  message.bytes = letter.bytes();
  message.tag = letter.tag;
  message.is_cell = is_cell;
  message.wants_receipt = letter.wants_receipt;
}

}  // namespace

Outbox::Outbox(std::shared_ptr<Board> board, std::shared_ptr<Arena> arena,
               std::chrono::microseconds patience)
    : board_(std::move(board)),
      arena_(std::move(arena)),
      patience_(patience),
      outgoing_(static_cast<size_t>(board_->size())) {}

void Outbox::release() {
  for (auto& outgoing : outgoing_) {
    for (const auto& sent : outgoing.under_way) {
      arena_->give_back(sent.block);
      if (sent.rest.data) arena_->give_back(sent.rest);
    }
  }
  for (const auto& block : free_.take_all()) arena_->give_back(block);
}

bool Outbox::all_received() {
  for (int peer = 0; peer < board_->size(); ++peer) {
    auto& outgoing = outgoing_[static_cast<size_t>(peer)];
    const std::lock_guard lock(outgoing.mutex);
    const auto is_received = [](const auto& sent) { return is_received_in(sent.block); };
    if (!std::ranges::all_of(outgoing.under_way, is_received)) return false;
    if (!board_->lane(board_->rank(), peer).cells.all_taken(outgoing.next_cell)) return false;
  }
  return true;
}

Arena::Piece Outbox::new_block(Outgoing& outgoing, size_t bytes) {
  reclaim(outgoing);
  const size_t size = BlockPool::block_size(bytes);
  if (const auto block = free_.take(size)) return *block;
  reclaim_others(outgoing);
  if (const auto block = free_.take(size)) return *block;
  return arena_->take(size);
}

void Outbox::reclaim(Outgoing& outgoing) {
  auto& under_way = outgoing.under_way;
  size_t& at = outgoing.next_looked_at;
  for (size_t looks = std::min(under_way.size(), kLooks); looks > 0; --looks) {
    if (at >= under_way.size()) at = 0;
    if (!is_received_in(under_way[at].block)) {
      ++at;
      continue;
    }
    const auto [block, rest, received] = std::exchange(under_way[at], under_way.back());
    under_way.pop_back();
    if (received) *received = true;
    if (rest.data) arena_->give_back(rest);
    if (!free_.keep(block)) arena_->give_back(block);
  }
}

void Outbox::reclaim_others(const Outgoing& outgoing) {
  for (auto& other : outgoing_) {
    if (&other == &outgoing) continue;
    // If another thread holds the mutex, it is sending and reclaims by itself.
    const std::unique_lock lock(other.mutex, std::try_to_lock);
    if (lock) reclaim(other);
  }
}

Outbox::Receipt Outbox::send(int peer, const Letter& letter) {
  auto& outgoing = outgoing_[static_cast<size_t>(peer)];
  std::unique_lock lock(outgoing.mutex);
  Cells& cells = board_->lane(board_->rank(), peer).cells;
  const uint64_t n = outgoing.next_cell;
  if (letter.bytes() <= Cells::kRoom && cells.is_free(n)) {
    Envelope& cell = cells.at(n);
    write(cell, letter, outgoing.next_number++, /*is_cell=*/true);
    copy(cell.data(), letter.head);
    copy(cell.data() + letter.head.size(), letter.payload);
    cell.stamp = Cells::sent(n);
    board_->ring(peer);
    ++outgoing.next_cell;
    // By now the receiver has usually taken the old message from the next cell. The next message is
    // often as long as this one, and a write to a line that the receiver's cache holds is slow.
    const uint64_t next = outgoing.next_cell;
    if (next >= Cells::kCount && cells.is_free(next)) {
      own_lines(cells.at(next).data(), letter.bytes());
    }
    reclaim(outgoing);
    return {.cell = &cell, .stamp = Cells::sent(n)};
  }
  size_t done = 0;
  UnderWay sent{post_block(peer, outgoing, letter, done), {}, nullptr};
  if (letter.wants_receipt) sent.received = std::make_shared<std::atomic<bool>>(false);
  if (done < letter.bytes()) {
    lock.unlock();
    Block& block = block_in(sent.block);
    std::exception_ptr failure;
    try {
      sent.rest = send_rest(peer, block, letter.payload, done);
    } catch (...) {
      failure = std::current_exception();
      block.rest = Block::kBrokenOff;
      board_->ring(peer);
    }
    lock.lock();
    if (failure) {
      // Freed when the receiver has seen that no more bytes come.
      outgoing.under_way.push_back(sent);
      std::rethrow_exception(failure);
    }
  }
  outgoing.under_way.push_back(sent);
  return {.received = sent.received};
}

Arena::Piece Outbox::post_block(int peer, Outgoing& outgoing, const Letter& letter, size_t& done) {
  const size_t window = Block::window(letter.bytes());
  const Arena::Piece piece = new_block(outgoing, sizeof(Block) + window);
  Block& block = block_in(piece);
  block.envelope.stamp.store(0, std::memory_order_relaxed);
  write(block.envelope, letter, outgoing.next_number++, /*is_cell=*/false);
  block.drained.store(0, std::memory_order_relaxed);
  block.rest.store(0, std::memory_order_relaxed);
  // A head is followed by a small payload, and both are copied here.
  done = letter.head.empty() ? 0 : letter.bytes();
  if (done > 0) {
    copy(block.data(), letter.head);
    copy(block.data() + letter.head.size(), letter.payload);
  }
  block.filled.store(done, std::memory_order_relaxed);
  auto& newest = board_->lane(board_->rank(), peer).newest_block;
  block.envelope.older = newest;
  while (!newest.compare_exchange_weak(block.envelope.older, piece.ref)) {
  }
  board_->ring(peer);
  return piece;
}

Arena::Piece Outbox::send_rest(int peer, Block& block, std::string_view bytes, size_t done) {
  const uint64_t window = Block::window(bytes.size());
  while (done < bytes.size()) {
    const auto piece = bytes.substr(done, Block::kPiece);
    if (done + piece.size() > window && !await_room(block, window, done, piece.size())) break;
    copy(block.data() + done % window, piece);
    block.filled = done += piece.size();
    board_->ring(peer);
  }
  if (done == bytes.size()) return {};
  const Arena::Piece rest = arena_->take(bytes.size() - done);
  copy(rest.data, bytes.substr(done));
  block.rest = rest.ref;
  board_->ring(peer);
  return rest;
}

// Polls until the receiver has made room for `bytes` bytes; returns whether it has in time.
bool Outbox::await_room(const Block& block, uint64_t window, uint64_t filled, size_t bytes) const {
  uint64_t drained = 0;
  auto until = Clock::time_point::min();
  for (int tries = 0;; ++tries) {
    const uint64_t now = block.drained;
    if (filled + bytes <= now + window) return true;
    if (now != drained || until == Clock::time_point::min()) until = Clock::now() + patience_;
    if (Clock::now() > until) return false;
    drained = now;
    board_->pause(tries);
  }
}

bool Outbox::is_received(int peer, const Receipt& receipt) {
  if (receipt.cell) return receipt.cell->stamp != receipt.stamp;
  if (*receipt.received) return true;
  auto& outgoing = outgoing_[static_cast<size_t>(peer)];
  const std::lock_guard lock(outgoing.mutex);
  reclaim(outgoing);
  return *receipt.received;
}

void Outbox::await_received(int peer, const Receipt& receipt, Deadline deadline,
                            const std::function<std::string()>& who,
                            const std::function<bool()>& has_left) {
  bool left = false;
  const auto is_over = [&] {
    const bool was_left = has_left();
    const bool taken = is_received(peer, receipt);
    left = !taken && was_left;
    return taken || left;
  };
  board_->await(is_over, deadline, [&] { return who() + " to receive a message"; });
  if (left) throw Error("comm", ErrorKind::peer, {.what = who() + " has left the group"});
}

}  // namespace troika::comm::shm
