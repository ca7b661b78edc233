// Messages between the ranks of a board: linked blocks of the sender's memory.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "troika/comm/group_impl.h"
#include "troika/comm/shm/arena.h"
#include "troika/comm/shm/board.h"

namespace troika::comm::shm {

// For each ordered pair of ranks there is one list, to which the sender appends and from which the
// receiver takes. A send copies and is done; a receive copies out. So neither waits for the other
// to make progress, and nothing is bounded but memory. All functions may be called from any thread.
class Mailbox {
 public:
  // Member m of the board is rank arena_ranks[m] of the arena.
  Mailbox(std::shared_ptr<Board> board, std::shared_ptr<Arena> arena, std::vector<int> arena_ranks);
  ~Mailbox();

  void send(int peer, uint32_t tag, const void* data, size_t bytes);
  // Blocks until the message is there; `has_left` tells whether the peer will send no more.
  void receive(int peer, uint32_t tag, void* data, size_t bytes, Deadline deadline,
               const std::function<bool()>& has_left);

 private:
  struct Block;
  struct Sent {
    Block* block;
    Ref ref;
    size_t size_class;
  };
  // To one peer.
  struct Outgoing {
    std::mutex mutex;
    Block* last = nullptr;
    std::deque<Sent> under_way;
  };
  // From one peer.
  struct Incoming {
    std::mutex mutex;
    Block* last = nullptr;
    std::deque<Block*> waiting;  // taken off the list, not yet received
  };

  Sent new_block(Outgoing& outgoing, size_t bytes);
  void reclaim(Outgoing& outgoing);
  // Takes what has come off the list; call with the mutex held.
  bool look(int peer, Incoming& incoming);
  Block* find(Incoming& incoming, uint32_t tag);

  static constexpr size_t kClasses = 40;

  const std::shared_ptr<Board> board_;
  const std::shared_ptr<Arena> arena_;
  const std::vector<int> arena_ranks_;
  std::vector<Outgoing> outgoing_;
  std::vector<Incoming> incoming_;
  std::mutex pool_mutex_;
  std::array<std::vector<Sent>, kClasses> free_;
  std::vector<Arena::Piece> pieces_;
};

}  // namespace troika::comm::shm
