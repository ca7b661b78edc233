#include "troika/comm/shm/inbox.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "troika/base/error.h"

namespace troika::comm::shm {

Inbox::Inbox(std::shared_ptr<Board> board, std::shared_ptr<Arena> arena,
             std::vector<int> arena_ranks)
    : board_(std::move(board)),
      arena_(std::move(arena)),
      arena_ranks_(std::move(arena_ranks)),
      incoming_(arena_ranks_.size()) {}

// Whether look() would find a message. Needs no lock.
bool Inbox::has_news(int peer, const Incoming& incoming) const {
  auto& lane = board_->lane(peer, board_->rank());
  return lane.cells.has(incoming.next_cell) || lane.newest_block != 0;
}

// Takes the blocks off the board, in the order in which they were sent; call with the mutex held.
// Throws Error(peer) if the sender does not have their memory.
void Inbox::take_list(int peer, Incoming& incoming) {
  auto& listed = incoming.listed;
  const auto end = listed.size();
  auto& newest = board_->lane(peer, board_->rank()).newest_block;
  for (Ref ref = newest.exchange(0); ref != 0; ref = listed.back()->older) {
    const int owner = arena_ranks_[static_cast<size_t>(peer)];
    auto* const message = reinterpret_cast<Envelope*>(arena_->at(owner, ref, sizeof(Block)));
    arena_->at(owner, ref, sizeof(Block) + Block::window(message->bytes));
    listed.push_back(message);
  }
  std::reverse(listed.begin() + static_cast<std::ptrdiff_t>(end), listed.end());
}

// Returns the next message of this peer if it has arrived; call with the mutex held.
Envelope* Inbox::next_message(int peer, Incoming& incoming) {
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
    take_list(peer, incoming);
  }
}

// Moves the messages that have arrived to their streams, up to the wanted one, which it returns;
// call with the mutex held.
Envelope* Inbox::look(int peer, Incoming& incoming, const Expected* wanted) {
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

Inbox::Expected Inbox::expect(int peer, uint32_t tag) {
  auto& incoming = incoming_[static_cast<size_t>(peer)];
  const std::lock_guard lock(incoming.mutex);
  Stream& stream = incoming.streams[tag];
  return {peer, tag, &stream, stream.expected++};
}

void Inbox::forget(const Expected& expected) {
  const std::lock_guard lock(incoming_[static_cast<size_t>(expected.peer)].mutex);
  if (expected.stream->expected == expected.number + 1) --expected.stream->expected;
}

std::optional<int> Inbox::await_any(uint32_t tag, int first, Deadline deadline,
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

Envelope& Inbox::await(const Expected& expected, Deadline deadline, const Who& who,
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

size_t Inbox::length_of(const Envelope& message, size_t most, const Who& who) {
  const uint64_t bytes = message.bytes;
  const auto refuse = [&](ErrorKind kind, const char* what, size_t expected) {
    throw Error("comm", kind,
                {.what = fmt::format("a message from {} is longer than its {}", who(), what),
                 .got = fmt::format("{} bytes", bytes),
                 .expected = fmt::format("at most {}", expected)});
  };
  if (bytes > most) refuse(ErrorKind::usage, "receive", most);
  if (message.is_cell && bytes > Cells::kRoom) refuse(ErrorKind::peer, "cell", Cells::kRoom);
  return bytes;
}

void Inbox::copy_out(int peer, Envelope& message, size_t bytes, char* into, Deadline deadline,
                     const Who& who) {
  auto& block = reinterpret_cast<Block&>(message);
  const int owner = arena_ranks_[static_cast<size_t>(peer)];
  const uint64_t window = Block::window(bytes);
  uint64_t done = 0;
  while (done < bytes) {
    const auto has_more = [&] { return block.filled > done || block.rest != 0; };
    if (!has_more()) {
      board_->await(has_more, deadline, [&] { return "the rest of a message from " + who(); });
    }
    // The rest follows the bytes that were sent through the window.
    const Ref rest = block.rest;
    const uint64_t filled = block.filled;
    if (filled > done) {
      const auto piece =
          std::min<uint64_t>({filled - done, Block::kPiece, bytes - done, window - done % window});
      std::memcpy(into + done, block.data() + done % window, piece);
      block.drained.store(done += piece, std::memory_order_release);
    } else if (rest == Block::kBrokenOff) {
      throw Error("comm", ErrorKind::peer,
                  {.what = fmt::format("{} had no memory for the rest of a message", who()),
                   .got = fmt::format("{} bytes", done),
                   .expected = std::to_string(bytes)});
    } else if (rest != 0) {
      std::memcpy(into + done, arena_->at(owner, rest, bytes - done), bytes - done);
      done = bytes;
    }
  }
}

void Inbox::take(int peer, Envelope& message) {
  const bool wants_receipt = message.wants_receipt;
  auto& stamp = message.stamp;
  const uint64_t taken = message.is_cell ? stamp.load(std::memory_order_relaxed) + 1 : 1;
  // With the release store, a sender that goes to sleep right now, while its group is destroyed,
  // may miss the ring. It then checks again by itself.
  stamp.store(taken, wants_receipt ? std::memory_order_seq_cst : std::memory_order_release);
  board_->ring(peer);
}

}  // namespace troika::comm::shm
