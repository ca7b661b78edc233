// Messages between the ranks of a board: linked blocks of the sender's memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "troika/comm/group_impl.h"
#include "troika/comm/shm/arena.h"
#include "troika/comm/shm/board.h"

namespace troika::comm::shm {

// For each ordered pair of ranks there is one list, in front of which the sender puts a message and
// which the receiver takes as a whole. Its head lies on the board, so that neither touches the
// memory of a message that was received, which may be used for something else. A send copies and is
// done; a receive copies out. So neither waits for the other to make progress, and nothing is
// bounded but memory. Memory of received messages is used for the next ones: it is bounded by what
// is under way at a time. All functions may be called from any thread.
class Mailbox {
 public:
  // Member m of the board is rank arena_ranks[m] of the arena.
  Mailbox(std::shared_ptr<Board> board, std::shared_ptr<Arena> arena, std::vector<int> arena_ranks);

  // Set, on this rank, once the receiver has taken a message.
  using Received = std::shared_ptr<std::atomic<bool>>;
  void send(int peer, uint32_t tag, const void* data, size_t bytes, Received received = nullptr);
  // Whether a message to `peer` that was sent with it has been received.
  bool is_received(int peer, const std::atomic<bool>& received);
  // Blocks until it has been received; for `who` and `has_left` see receive().
  void await_received(int peer, const std::atomic<bool>& received, Deadline deadline,
                      const std::function<std::string()>& who,
                      const std::function<bool()>& has_left);
  // The number of the message that a receive started now is for.
  uint64_t expect(int peer, uint32_t tag);
  // Takes that back, if it is the latest of its tag.
  void forget(int peer, uint32_t tag, uint64_t number);
  // Blocks until a message with this tag is there that nobody expects; gives its sender, the first
  // from `first` on. Nothing when `hopeless` says so.
  std::optional<int> await_any(uint32_t tag, int first, Deadline deadline,
                               const std::function<bool()>& hopeless);
  // Blocks until that message is there. `who` says the peer for errors, and `has_left` whether it
  // will send no more.
  void receive(int peer, uint32_t tag, uint64_t number, void* data, size_t bytes, Deadline deadline,
               const std::function<std::string()>& who, const std::function<bool()>& has_left);
  // Whether all that was sent has been received.
  bool all_received();
  // Gives the memory back to the arena; only then will it be used for something else.
  void release();

 private:
  struct Block;
  // To one peer.
  struct Outgoing {
    std::mutex mutex;
    struct UnderWay {
      Arena::Piece block;
      Received received;  // if somebody wants to know
    };
    std::vector<UnderWay> under_way;  // in any order
    size_t next_looked_at = 0;
  };
  // From one peer.
  struct Incoming {
    std::mutex mutex;
    // For each tag: how many messages were expected, how many have arrived, and those not yet
    // received, by number.
    struct Stream {
      uint64_t expected = 0;
      uint64_t arrived = 0;
      std::map<uint64_t, Block*> waiting;
    };
    std::map<uint32_t, Stream> streams;
  };

  // A block for a message of so many bytes; call with the mutex held.
  Arena::Piece new_block(Outgoing& outgoing, size_t bytes);
  // Makes blocks that were received free again; call with the mutex held.
  void reclaim(Outgoing& outgoing);
  // The same of all peers but that one.
  void reclaim_others(const Outgoing& outgoing);
  // Keeps a block for the next message, unless it is large or enough are kept.
  bool keep(const Arena::Piece& block);
  // Takes what has come off the list; call with the mutex held.
  bool look(int peer, Incoming& incoming);

  const std::shared_ptr<Board> board_;
  const std::shared_ptr<Arena> arena_;
  const std::vector<int> arena_ranks_;
  std::vector<Outgoing> outgoing_;
  std::vector<Incoming> incoming_;
  std::mutex pool_mutex_;
  std::map<size_t, std::vector<Arena::Piece>> free_;  // kept blocks, by size
  size_t kept_bytes_ = 0;
};

}  // namespace troika::comm::shm
