#include "troika/comm/shm/mailbox.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>

#include "troika/base/error.h"

namespace troika::comm::shm {

namespace {

// Blocks of at most this size are kept for reuse, up to kKeptBytes in total; other blocks go back
// to the arena.
constexpr size_t kSmallBlock = size_t{64} << 10;
constexpr size_t kKeptBytes = size_t{4} << 20;
// How many blocks in flight a send checks for blocks to reclaim.
constexpr size_t kLooks = 64;
// Sender and receiver copy pieces of this size at the same time, one piece apart.
constexpr size_t kStreamPiece = size_t{32} << 10;
constexpr size_t kWindow = 31 * kStreamPiece;  // its block almost fills a power of two
// How long a sender waits for a receiver that reads nothing.
constexpr std::chrono::microseconds kPatience{50};

Block& block_in(const Arena::Piece& piece) {
  return *reinterpret_cast<Block*>(piece.data);
}

bool is_received_in(const Arena::Piece& piece) {
  return block_in(piece).envelope.stamp != 0;
}

void copy(char* to, std::string_view bytes) {
  if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
}

// Writes everything except the stamp.
void write(Envelope& message, const Mailbox::Letter& letter, uint64_t number, bool is_cell) {
  message.number = number;
  message.bytes = letter.bytes();
  message.tag = letter.tag;
  message.is_cell = is_cell;
  message.wants_receipt = letter.wants_receipt;
}

}  // namespace

Mailbox::Mailbox(std::shared_ptr<Board> board, std::shared_ptr<Arena> arena,
                 std::vector<int> arena_ranks)
    : board_(std::move(board)),
      arena_(std::move(arena)),
      arena_ranks_(std::move(arena_ranks)),
      outgoing_(arena_ranks_.size()),
      incoming_(arena_ranks_.size()) {}

void Mailbox::release() {
  for (auto& outgoing : outgoing_) {
    for (const auto& sent : outgoing.under_way) {
      arena_->give_back(sent.block);
      if (sent.rest.data) arena_->give_back(sent.rest);
    }
  }
  for (const auto& [_, blocks] : free_)
    for (const auto& block : blocks) arena_->give_back(block);
}

bool Mailbox::all_received() {
  for (auto& outgoing : outgoing_) {
    const std::lock_guard lock(outgoing.mutex);
    const auto is_received = [](const auto& sent) { return is_received_in(sent.block); };
    if (!std::ranges::all_of(outgoing.under_way, is_received)) return false;
  }
  for (int peer = 0; peer < board_->size(); ++peer) {
    if (!board_->lane(board_->rank(), peer).cells.all_taken()) return false;
  }
  return true;
}

Arena::Piece Mailbox::new_block(Outgoing& outgoing, size_t bytes) {
  reclaim(outgoing);
  if (bytes > kSmallBlock) {
    reclaim_others(outgoing);
    return arena_->take(bytes);
  }
  const size_t size = BuddyAllocator::block_size(bytes);
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
    if (!is_received_in(under_way[at].block)) {
      ++at;
      continue;
    }
    const auto [block, rest, received] = std::exchange(under_way[at], under_way.back());
    under_way.pop_back();
    if (received) *received = true;
    if (rest.data) arena_->give_back(rest);
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
    // If another thread holds the mutex, it is sending and reclaims by itself.
    const std::unique_lock lock(other.mutex, std::try_to_lock);
    if (lock) reclaim(other);
  }
}

Mailbox::Receipt Mailbox::send(int peer, const Letter& letter) {
  auto& outgoing = outgoing_[static_cast<size_t>(peer)];
  const std::lock_guard lock(outgoing.mutex);
  Cells& cells = board_->lane(board_->rank(), peer).cells;
  const uint64_t n = outgoing.next_cell;
  if (letter.bytes() > Cells::kRoom || !cells.is_free(n)) {
    return send_block(peer, outgoing, letter);
  }
  Envelope& cell = cells.at(n);
  write(cell, letter, outgoing.next_number++, /*is_cell=*/true);
  copy(cell.data(), letter.head);
  copy(cell.data() + letter.head.size(), letter.payload);
  cell.stamp = Cells::sent(n);
  board_->ring(peer);
  ++outgoing.next_cell;
  // By now the receiver has usually taken the old message from the next cell.
  __builtin_prefetch(&cells.at(outgoing.next_cell), 1);
  reclaim(outgoing);
  return {.cell = &cell, .stamp = Cells::sent(n)};
}

Mailbox::Receipt Mailbox::send_block(int peer, Outgoing& outgoing, const Letter& letter) {
  const size_t bytes = letter.bytes();
  const size_t window = std::clamp<size_t>(bytes, 1, kWindow);
  const Arena::Piece piece = new_block(outgoing, sizeof(Block) + window);
  Block& block = block_in(piece);
  block.envelope.stamp.store(0, std::memory_order_relaxed);
  write(block.envelope, letter, outgoing.next_number++, /*is_cell=*/false);
  block.window = window;
  block.drained.store(0, std::memory_order_relaxed);
  block.rest.store(0, std::memory_order_relaxed);
  // A head is followed by a small payload.
  copy(block.at(0), letter.head);
  size_t done = letter.head.size();
  if (done > 0) copy(block.at(done), letter.payload.substr(0, window - done));
  done = done > 0 ? bytes : 0;
  block.filled.store(done, std::memory_order_relaxed);
  auto& newest = board_->lane(board_->rank(), peer).newest_block;
  block.envelope.older = newest;
  while (!newest.compare_exchange_weak(block.envelope.older, piece.ref)) {
  }
  board_->ring(peer);
  if (done < bytes) done = stream(peer, block, letter.payload);
  Outgoing::UnderWay sent{piece, {}, nullptr};
  if (done < bytes) {
    sent.rest = arena_->take(bytes - done);
    copy(sent.rest.data, letter.payload.substr(done));
    block.rest = sent.rest.ref;
    board_->ring(peer);
  }
  if (letter.wants_receipt) sent.received = std::make_shared<std::atomic<bool>>(false);
  outgoing.under_way.push_back(sent);
  return {.received = sent.received};
}

size_t Mailbox::stream(int peer, Block& block, std::string_view bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const auto piece = bytes.substr(done, kStreamPiece);
    if (done + piece.size() > block.window && !await_room(block, done, piece.size())) break;
    copy(block.at(done), piece);
    block.filled = done += piece.size();
    board_->ring(peer);
  }
  return done;
}

// Polls until the receiver has made room for `bytes` bytes; returns whether it has in time.
bool Mailbox::await_room(const Block& block, uint64_t filled, size_t bytes) const {
  uint64_t drained = 0;
  auto until = Clock::time_point::min();
  for (int tries = 0;; ++tries) {
    const uint64_t now = block.drained;
    if (filled + bytes <= now + block.window) return true;
    if (now != drained || until == Clock::time_point::min()) until = Clock::now() + kPatience;
    if (Clock::now() > until) return false;
    drained = now;
    board_->pause(tries);
  }
}

bool Mailbox::is_received(int peer, const Receipt& receipt) {
  if (receipt.cell) return receipt.cell->stamp != receipt.stamp;
  if (*receipt.received) return true;
  auto& outgoing = outgoing_[static_cast<size_t>(peer)];
  const std::lock_guard lock(outgoing.mutex);
  reclaim(outgoing);
  return *receipt.received;
}

void Mailbox::await_received(int peer, const Receipt& receipt, Deadline deadline,
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

// Whether look() would find a message. Needs no lock.
bool Mailbox::has_news(int peer, const Incoming& incoming) const {
  auto& lane = board_->lane(peer, board_->rank());
  return lane.cells.has(incoming.next_cell) || lane.newest_block != 0;
}

// Returns the next message of this peer if it has arrived; call with the mutex held.
Envelope* Mailbox::next_message(int peer, Incoming& incoming) {
  auto& lane = board_->lane(peer, board_->rank());
  while (true) {
    const uint64_t n = incoming.next_cell;
    if (lane.cells.has(n) && lane.cells.at(n).number == incoming.next_number) {
      ++incoming.next_number;
      incoming.next_cell = n + 1;
      return &lane.cells.at(n);
    }
    auto& listed = incoming.listed;
    if (!listed.empty() && listed.front()->number == incoming.next_number) {
      ++incoming.next_number;
      Envelope* const block = listed.front();
      listed.pop_front();
      return block;
    }
    if (lane.newest_block == 0) return nullptr;
    const auto end = listed.size();
    for (Ref ref = lane.newest_block.exchange(0); ref != 0; ref = listed.back()->older) {
      listed.push_back(
          reinterpret_cast<Envelope*>(arena_->at(arena_ranks_[static_cast<size_t>(peer)], ref)));
    }
    std::reverse(listed.begin() + static_cast<std::ptrdiff_t>(end), listed.end());
  }
}

// Moves the messages that have arrived to their streams, up to the wanted one, which it returns;
// call with the mutex held.
Envelope* Mailbox::look(int peer, Incoming& incoming, const Expected* wanted) {
  bool keeps = false;
  Envelope* found = nullptr;
  // Blocks that are off the board are not seen by has_news(), so none stay listed.
  while (!found || !incoming.listed.empty()) {
    Envelope* const message = next_message(peer, incoming);
    if (!message) break;
    Stream& stream =
        wanted && wanted->tag == message->tag ? *wanted->stream : incoming.streams[message->tag];
    const uint64_t number = stream.arrived++;
    if (wanted && &stream == wanted->stream && number == wanted->number) {
      found = message;
    } else {
      stream.waiting[number] = message;
      keeps = true;
    }
  }
  // Another thread of this rank may be waiting for a message that was just moved.
  if (keeps) {
    ++incoming.kept;
    board_->ring(board_->rank());
  }
  return found;
}

Mailbox::Expected Mailbox::expect(int peer, uint32_t tag) {
  auto& incoming = incoming_[static_cast<size_t>(peer)];
  const std::lock_guard lock(incoming.mutex);
  Stream& stream = incoming.streams[tag];
  return {peer, tag, &stream, stream.expected++};
}

void Mailbox::forget(const Expected& expected) {
  const std::lock_guard lock(incoming_[static_cast<size_t>(expected.peer)].mutex);
  if (expected.stream->expected == expected.number + 1) --expected.stream->expected;
}

std::optional<int> Mailbox::await_any(uint32_t tag, int first, Deadline deadline,
                                      const std::function<bool()>& hopeless) {
  const int size = static_cast<int>(incoming_.size());
  std::optional<int> from;
  bool over = false;
  const auto is_over = [&] {
    over = hopeless();
    for (int i = 0; i < size && !from; ++i) {
      const int peer = (first + i) % size;
      if (peer == board_->rank()) continue;
      auto& incoming = incoming_[static_cast<size_t>(peer)];
      const std::lock_guard lock(incoming.mutex);
      look(peer, incoming, nullptr);
      const auto& stream = incoming.streams[tag];
      if (stream.waiting.contains(stream.expected)) from = peer;
    }
    return from || over;
  };
  board_->await(is_over, deadline, [] { return "a message from any rank"; });
  return from;
}

Envelope& Mailbox::await(const Expected& expected, Deadline deadline,
                         const std::function<std::string()>& who,
                         const std::function<bool()>& has_left) {
  const int peer = expected.peer;
  auto& incoming = incoming_[static_cast<size_t>(peer)];
  Envelope* found = nullptr;
  bool left = false;
  int tries = 0;
  uint64_t kept = 0;
  const auto arrived = [&] {
    // While polling, checks only rarely whether the peer has left.
    const bool was_left = (tries % 64 == 63 || board_->sleeps_after(tries)) && has_left();
    if (tries++ == 0 || incoming.kept != kept || has_news(peer, incoming)) {
      const std::lock_guard lock(incoming.mutex);
      kept = incoming.kept;
      auto& waiting = expected.stream->waiting;
      if (expected.stream->arrived <= expected.number) {
        found = look(peer, incoming, &expected);
      } else if (const auto node = waiting.extract(expected.number)) {
        found = node.mapped();
      }
    }
    left = !found && was_left;
    return found || left;
  };
  board_->await(arrived, deadline, [&] { return "a message from " + who(); });
  if (left) throw Error("comm", ErrorKind::peer, {.what = who() + " has left the group"});
  return *found;
}

void Mailbox::copy_out(int peer, Envelope& message, char* into, Deadline deadline,
                       const std::function<std::string()>& who) {
  auto& block = reinterpret_cast<Block&>(message);
  uint64_t done = 0;
  while (done < message.bytes) {
    const auto has_more = [&] { return block.filled > done || block.rest != 0; };
    if (!has_more()) {
      board_->await(has_more, deadline, [&] { return "the rest of a message from " + who(); });
    }
    // The rest follows the bytes that were sent through the window.
    const Ref rest = block.rest;
    const uint64_t filled = block.filled;
    if (filled > done) {
      const auto piece = std::min<uint64_t>(filled - done, kStreamPiece);
      std::memcpy(into + done, block.at(done), piece);
      block.drained.store(done += piece, std::memory_order_release);
    } else if (rest != 0) {
      const int owner = arena_ranks_[static_cast<size_t>(peer)];
      std::memcpy(into + done, arena_->at(owner, rest), message.bytes - done);
      done = message.bytes;
    }
  }
}

void Mailbox::take(int peer, Envelope& message) {
  const bool wants_receipt = message.wants_receipt;
  auto& stamp = message.stamp;
  const uint64_t taken = message.is_cell ? stamp.load(std::memory_order_relaxed) + 1 : 1;
  // With the release store, a sender that goes to sleep right now, while its group is destroyed,
  // may miss the ring. It then checks again by itself.
  stamp.store(taken, wants_receipt ? std::memory_order_seq_cst : std::memory_order_release);
  board_->ring(peer);
}

}  // namespace troika::comm::shm
