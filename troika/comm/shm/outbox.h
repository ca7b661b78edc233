// Sends messages to the ranks of a board, in cells on the board and in blocks of this rank's
// memory.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "troika/comm/shm/arena.h"
#include "troika/comm/shm/block_pool.h"
#include "troika/comm/shm/board.h"

namespace troika::comm::shm {

// Each ordered pair of ranks has a ring of cells for small messages, and a list of blocks for the
// messages that no cell takes: the sender pushes a block at the front, the receiver takes the whole
// list (Inbox). Messages of a pair are numbered, which gives the receiver their order. Cells and
// the head of the list are on the board, so neither rank touches a received block, whose memory may
// be in use for something else.
//
// A send copies and is done, so it does not wait for the receiver's progress; only memory limits
// the messages in flight. The memory of received messages is reused. All functions may be called
// from any thread; sends of several threads to one rank copy their messages at the same time.
class Outbox {
 public:
  // How long the sender of a long message waits for a receiver that reads nothing.
  static constexpr std::chrono::microseconds kPatience{50};

  Outbox(std::shared_ptr<Board> board, std::shared_ptr<Arena> arena,
         std::chrono::microseconds patience = kPatience);

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
  // Throws Error(failure) when there is no memory for the message. If a part of it was sent before,
  // its receiver gets an error too.
  Receipt send(int peer, const Letter& letter);
  // Whether the message to `peer` with this receipt has been received.
  bool is_received(int peer, const Receipt& receipt);
  // Blocks until the message has been received. `who` names the peer for errors; `has_left` says
  // whether the peer will receive nothing more.
  void await_received(int peer, const Receipt& receipt, Deadline deadline,
                      const std::function<std::string()>& who,
                      const std::function<bool()>& has_left);
  // Whether all sent messages have been received.
  bool all_received();
  // Gives the memory back to the arena. Until then it is used for messages only.
  void release();

 private:
  struct UnderWay {
    Arena::Piece block, rest;
    std::shared_ptr<std::atomic<bool>> received;  // if the sender asked for a receipt
  };
  // The state of sends to one peer. The mutex is not held while a long message is copied.
  struct Outgoing {
    std::mutex mutex;
    uint64_t next_number = 0;
    uint64_t next_cell = 0;
    std::vector<UnderWay> under_way;  // blocks that are completely written, in any order
    size_t next_looked_at = 0;
  };

  // Puts a block with the first bytes on the board, and returns it. Sets `done` to their number.
  // Call with the mutex held.
  Arena::Piece post_block(int peer, Outgoing& outgoing, const Letter& letter, size_t& done);
  // Sends the bytes of a posted block from `done` on. Returns the piece for those that were not
  // sent through the window, if any.
  Arena::Piece send_rest(int peer, Block& block, std::string_view bytes, size_t done);
  bool await_room(const Block& block, uint64_t window, uint64_t filled, size_t bytes) const;
  // Returns a block of `bytes` bytes; call with the mutex held.
  Arena::Piece new_block(Outgoing& outgoing, size_t bytes);
  // Frees the blocks that were received; call with the mutex held.
  void reclaim(Outgoing& outgoing);
  // The same for all other peers.
  void reclaim_others(const Outgoing& outgoing);

  const std::shared_ptr<Board> board_;
  const std::shared_ptr<Arena> arena_;
  const std::chrono::microseconds patience_;
  std::vector<Outgoing> outgoing_;
  BlockPool free_;
};

}  // namespace troika::comm::shm
