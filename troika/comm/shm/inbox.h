// Receives messages from the ranks of a board, in cells on the board and in blocks of the sender's
// memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "troika/comm/shm/arena.h"
#include "troika/comm/shm/board.h"

namespace troika::comm::shm {

// The receiving side of Outbox. A receive copies out, so it does not wait for the sender's
// progress, except for the bytes of a long message. The sender's description of a message is
// checked before it is used. All functions may be called from any thread.
class Inbox {
 public:
  // Member m of the board is rank arena_ranks[m] of the arena.
  Inbox(std::shared_ptr<Board> board, std::shared_ptr<Arena> arena, std::vector<int> arena_ranks);

  // The messages of one tag from one peer: how many were expected, how many have arrived, and the
  // messages not yet received, by number.
  struct Stream {
    uint64_t expected = 0;
    uint64_t arrived = 0;
    std::map<uint64_t, Envelope*> waiting;
  };
  // Identifies the message that a receive is waiting for.
  struct Expected {
    int peer = 0;
    uint32_t tag = 0;
    Stream* stream = nullptr;
    uint64_t number = 0;  // in its stream
  };
  // Names the peer for errors.
  using Who = std::function<std::string()>;

  Expected expect(int peer, uint32_t tag);
  // Cancels an expect() if it is the latest of its tag.
  void forget(const Expected& expected);
  // Blocks until a message with this tag has arrived that no receive expects. Returns its sender,
  // the first such rank from `first` on. Returns nothing when `hopeless` returns true.
  std::optional<int> await_any(uint32_t tag, int first, Deadline deadline,
                               const std::function<bool()>& hopeless);
  // Blocks until the message has arrived. `has_left` says whether the peer will send nothing more.
  Envelope& await(const Expected& expected, Deadline deadline, const Who& who,
                  const std::function<bool()>& has_left);
  // Returns the length of a message in bytes. Throws Error: `usage` if it is more than `most`,
  // `peer` if it is more than a cell holds and the message is in a cell.
  static size_t length_of(const Envelope& message, size_t most, const Who& who);
  // Copies the bytes out of a message in a block; `bytes` is its length. Throws Error(peer) if the
  // sender does not have the memory that it refers to, or had no memory for all bytes.
  void copy_out(int peer, Envelope& message, size_t bytes, char* into, Deadline deadline,
                const Who& who);
  // Marks the message as received.
  void take(int peer, Envelope& message);

 private:
  // The state of receives from one peer.
  struct Incoming {
    std::mutex mutex;
    uint64_t next_number = 0;
    std::atomic<uint64_t> next_cell = 0;
    std::deque<Envelope*> listed;  // taken off the list, but later than the next message in order
    std::map<uint32_t, Stream> streams;
    std::atomic<uint64_t> kept = 0;  // counts the messages that were put into a stream
  };

  bool has_news(int peer, const Incoming& incoming) const;
  void take_list(int peer, Incoming& incoming);
  Envelope* next_message(int peer, Incoming& incoming);
  Envelope* look(int peer, Incoming& incoming, const Expected* wanted);

  const std::shared_ptr<Board> board_;
  const std::shared_ptr<Arena> arena_;
  const std::vector<int> arena_ranks_;
  std::vector<Incoming> incoming_;
};

}  // namespace troika::comm::shm
