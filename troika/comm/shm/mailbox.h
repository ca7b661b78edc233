// Messages between the ranks of a board, in cells on the board and in blocks of the sender's
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
#include <string_view>
#include <vector>

#include "troika/comm/messages/group_impl.h"
#include "troika/comm/shm/arena.h"
#include "troika/comm/shm/board.h"

namespace troika::comm::shm {

// Sends and receives messages. Each ordered pair of ranks has a ring of cells for small messages,
// and a list of blocks for the messages that no cell takes: the sender pushes a block at the front,
// the receiver takes the whole list. Messages of a pair are numbered, which gives the receiver
// their order. Cells and the head of the list are on the board, so neither rank touches a received
// block, whose memory may be in use for something else.
//
// A send copies and is done, and a receive copies out, so neither waits for the other's progress;
// only memory limits the messages in flight. The memory of received messages is reused. All
// functions may be called from any thread.
class Mailbox {
 public:
  // Member m of the board is rank arena_ranks[m] of the arena.
  Mailbox(std::shared_ptr<Board> board, std::shared_ptr<Arena> arena, std::vector<int> arena_ranks);

  // Tells the sender when a message was received.
  struct Receipt {
    const Envelope* cell = nullptr;
    uint64_t stamp = 0;  // of the cell, until the message is received
    std::shared_ptr<std::atomic<bool>> received = nullptr;  // for a message in a block
  };
  // One message: `head` followed by `payload`.
  struct Letter {
    uint32_t tag = 0;
    std::string_view head = {}, payload = {};
    bool wants_receipt = false;

    size_t bytes() const { return head.size() + payload.size(); }
  };
  Receipt send(int peer, const Letter& letter);
  // Whether the message to `peer` with this receipt has been received.
  bool is_received(int peer, const Receipt& receipt);
  // Blocks until the message has been received. For `who` and `has_left` see await().
  void await_received(int peer, const Receipt& receipt, Deadline deadline,
                      const std::function<std::string()>& who,
                      const std::function<bool()>& has_left);

  struct Stream;
  // Identifies the message that a receive is waiting for.
  struct Expected {
    int peer = 0;
    uint32_t tag = 0;
    Stream* stream = nullptr;
    uint64_t number = 0;  // in its stream
  };
  Expected expect(int peer, uint32_t tag);
  // Cancels an expect() if it is the latest of its tag.
  void forget(const Expected& expected);
  // Blocks until a message with this tag has arrived that no receive expects. Returns its sender,
  // the first such rank from `first` on. Returns nothing when `hopeless` returns true.
  std::optional<int> await_any(uint32_t tag, int first, Deadline deadline,
                               const std::function<bool()>& hopeless);
  // Blocks until the message has arrived. `who` names the peer for errors; `has_left` says whether
  // the peer will send nothing more.
  Envelope& await(const Expected& expected, Deadline deadline,
                  const std::function<std::string()>& who, const std::function<bool()>& has_left);
  // Copies the bytes out of a message in a block.
  void copy_out(int peer, Envelope& message, char* into, Deadline deadline,
                const std::function<std::string()>& who);
  // Marks the message as received.
  void take(int peer, Envelope& message);
  // Whether all sent messages have been received.
  bool all_received();
  // Gives the memory back to the arena. Until then it is used for messages only.
  void release();

 private:
  // The state of sends to one peer.
  struct Outgoing {
    std::mutex mutex;
    uint64_t next_number = 0;
    uint64_t next_cell = 0;
    struct UnderWay {
      Arena::Piece block, rest;
      std::shared_ptr<std::atomic<bool>> received;  // if the sender asked for a receipt
    };
    std::vector<UnderWay> under_way;  // in any order
    size_t next_looked_at = 0;
  };
  // The state of receives from one peer.
  struct Incoming;

  Receipt send_block(int peer, Outgoing& outgoing, const Letter& letter);
  // Sends bytes through the window as far as the receiver keeps up. Returns how many bytes were
  // sent.
  size_t stream(int peer, Block& block, std::string_view bytes);
  bool await_room(const Block& block, uint64_t filled, size_t bytes) const;
  // Returns a block of `bytes` bytes; call with the mutex held.
  Arena::Piece new_block(Outgoing& outgoing, size_t bytes);
  // Frees the blocks that were received; call with the mutex held.
  void reclaim(Outgoing& outgoing);
  // The same for all other peers.
  void reclaim_others(const Outgoing& outgoing);
  // Keeps a block for reuse. Returns false if it is too large or enough blocks are kept.
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

// The messages of one tag from one peer: how many were expected, how many have arrived, and the
// messages not yet received, by number.
struct Mailbox::Stream {
  uint64_t expected = 0;
  uint64_t arrived = 0;
  std::map<uint64_t, Envelope*> waiting;
};

struct Mailbox::Incoming {
  std::mutex mutex;
  uint64_t next_number = 0;
  std::atomic<uint64_t> next_cell = 0;
  std::deque<Envelope*> listed;  // taken off the list, but later than the next message in order
  std::map<uint32_t, Stream> streams;
  std::atomic<uint64_t> kept = 0;  // counts the messages that were put into a stream
};

}  // namespace troika::comm::shm
