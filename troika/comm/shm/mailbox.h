// Messages between the ranks of a board: cells on the board, and blocks of the sender's memory.
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
#include <string_view>
#include <vector>

#include "troika/comm/group_impl.h"
#include "troika/comm/shm/arena.h"
#include "troika/comm/shm/board.h"

namespace troika::comm::shm {

// For each ordered pair of ranks there is a ring of cells for small messages, and a list, in front
// of which the sender puts a block with a message that no cell takes, and which the receiver takes
// as a whole. Messages of a pair are numbered, so the receiver finds their order. Cells and the
// list's head lie on the board, so that neither touches the memory of a block that was received,
// which may be used for something else. A send copies and is done; a receive copies out. So neither
// waits for the other to make progress, and nothing is bounded but memory. Memory of received
// messages is used for the next ones: it is bounded by what is under way at a time. All functions
// may be called from any thread.
class Mailbox {
 public:
  // Member m of the board is rank arena_ranks[m] of the arena.
  Mailbox(std::shared_ptr<Board> board, std::shared_ptr<Arena> arena, std::vector<int> arena_ranks);

  // Tells this rank, the sender, when a message was received.
  struct Receipt {
    const Envelope* cell = nullptr;
    uint64_t stamp = 0;                                     // of the cell, until then
    std::shared_ptr<std::atomic<bool>> received = nullptr;  // of a message in a block
  };
  // A message that is the two parts one behind the other.
  struct Letter {
    uint32_t tag = 0;
    std::string_view head = {}, payload = {};
    bool wants_receipt = false;

    size_t bytes() const { return head.size() + payload.size(); }
  };
  Receipt send(int peer, const Letter& letter);
  // Whether that message to `peer`, which was sent with a wish for a receipt, has been received.
  bool is_received(int peer, const Receipt& receipt);
  // Blocks until it has been received; for `who` and `has_left` see await().
  void await_received(int peer, const Receipt& receipt, Deadline deadline,
                      const std::function<std::string()>& who,
                      const std::function<bool()>& has_left);

  struct Stream;
  // The message that a receive is for.
  struct Expected {
    int peer = 0;
    uint32_t tag = 0;
    Stream* stream = nullptr;
    uint64_t number = 0;  // in its stream
  };
  Expected expect(int peer, uint32_t tag);
  // Takes that back, if it is the latest of its tag.
  void forget(const Expected& expected);
  // Blocks until a message with this tag is there that nobody expects; gives its sender, the first
  // from `first` on. Nothing when `hopeless` says so.
  std::optional<int> await_any(uint32_t tag, int first, Deadline deadline,
                               const std::function<bool()>& hopeless);
  // Blocks until the message is there. `who` says the peer for errors, and `has_left` whether it
  // will send no more.
  Envelope& await(const Expected& expected, Deadline deadline,
                  const std::function<std::string()>& who, const std::function<bool()>& has_left);
  // Copies the bytes of a message in a block out of it.
  void copy_out(int peer, Envelope& message, char* into, Deadline deadline,
                const std::function<std::string()>& who);
  // The message was received.
  void take(int peer, Envelope& message);
  // Whether all that was sent has been received.
  bool all_received();
  // Gives the memory back to the arena; only then will it be used for something else.
  void release();

 private:
  // To one peer.
  struct Outgoing {
    std::mutex mutex;
    uint64_t next_number = 0;
    uint64_t next_cell = 0;
    struct UnderWay {
      Arena::Piece block, rest;
      std::shared_ptr<std::atomic<bool>> received;  // if somebody wants to know
    };
    std::vector<UnderWay> under_way;  // in any order
    size_t next_looked_at = 0;
  };
  // From one peer.
  struct Incoming;

  Receipt send_block(int peer, Outgoing& outgoing, const Letter& letter);
  // Copies through the window what the receiver takes; returns how many bytes.
  size_t stream(int peer, Block& block, std::string_view bytes);
  bool await_room(const Block& block, uint64_t filled, size_t bytes) const;
  // A block of so many bytes; call with the mutex held.
  Arena::Piece new_block(Outgoing& outgoing, size_t bytes);
  // Makes blocks that were received free again; call with the mutex held.
  void reclaim(Outgoing& outgoing);
  // The same of all peers but that one.
  void reclaim_others(const Outgoing& outgoing);
  // Keeps a block for the next message, unless it is large or enough are kept.
  bool keep(const Arena::Piece& block);
  bool has_news(int peer, const Incoming& incoming) const;
  Envelope* next_message(int peer, Incoming& incoming);
  Envelope* look(int peer, Incoming& incoming, const Expected* wanted);

  const std::shared_ptr<Board> board_;
  const std::shared_ptr<Arena> arena_;
  const std::vector<int> arena_ranks_;
  std::vector<Outgoing> outgoing_;
  std::vector<Incoming> incoming_;
  std::mutex pool_mutex_;
  std::map<size_t, std::vector<Arena::Piece>> free_;  // kept blocks, by size
  size_t kept_bytes_ = 0;
};

// The messages of one tag from one peer: how many were expected, how many have arrived, and those
// not yet received, by number.
struct Mailbox::Stream {
  uint64_t expected = 0;
  uint64_t arrived = 0;
  std::map<uint64_t, Envelope*> waiting;
};

struct Mailbox::Incoming {
  std::mutex mutex;
  uint64_t next_number = 0;
  std::atomic<uint64_t> next_cell = 0;
  std::deque<Envelope*> listed;  // taken off the list, whose turn has not come
  std::map<uint32_t, Stream> streams;
  std::atomic<uint64_t> kept = 0;  // how often a message was put into a stream
};

}  // namespace troika::comm::shm
