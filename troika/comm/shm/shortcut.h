// Collectives straight in shared memory: ranks read each other's buffers, or, where those are
// private, each other's staging areas, which stay in cache.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "troika/comm/shm/arena.h"
#include "troika/comm/shm/board.h"
#include "troika/comm/shm/stores.h"

namespace troika::comm::shm {

// Every rank reduces its own part, all in the order of ranks, so that all hold the same bits.
class Shortcut {
 public:
  // Member m of the board is rank arena_ranks[m] of the arena. Without `in_place`, which is the
  // same on all ranks, no rank touches another's buffers: one that gives up may go on using its
  // own.
  Shortcut(std::shared_ptr<Board> board, std::shared_ptr<Arena> arena, std::vector<int> arena_ranks,
           bool in_place);
  // Tells the others of this call, with the data if it is small, and where its buffer is.
  void publish(const Call& call);
  // After all have published: carries the call out, or returns false (see GroupImpl::shortcut).
  bool run(const Call& call, Deadline deadline);

  // All ranks' staging areas; called once by every rank, at the same time.
  void exchange_staging(Deadline deadline);
  // Whether every rank is done with the calls that this one has run.
  bool all_finished() const;
  // Gives the staging area back to the arena.
  void release() { arena_->give_back(own_staging_); }

 private:
  void run_small(const Call& call) const;
  bool all_shared(const Call& call) const;
  void run_in_place(const Call& call, Deadline deadline) const;
  void run_staged(const Call& call, Deadline deadline);
  void reduce_slice(const Call& call, char* own, char* staged, std::vector<const void*> terms,
                    size_t bytes) const;
  // Return how many turns they took.
  size_t all_reduce_staged(const Call& call, Deadline deadline);
  size_t reduce_scatter_staged(const Call& call, Deadline deadline);
  size_t move_staged(const Call& call, Deadline deadline);
  // The next turns stage at most `bytes` each, not more than a chunk.
  void start_turns(size_t bytes);
  // Where a rank stages in a turn, counted from start_turns().
  char* staging(int rank, size_t turn) const;

  const std::shared_ptr<Board> board_;
  const std::shared_ptr<Arena> arena_;
  const std::vector<int> arena_ranks_;
  const int me_;
  const int size_;
  const bool in_place_;
  Arena::Piece own_staging_;
  std::vector<char*> staging_;
  int64_t last_call_ = -1;  // that was run here
  // Bytes of the staging areas that were used so far, and bytes of one turn; the same on all ranks.
  size_t staged_ = 0;
  size_t turn_bytes_ = 0;
  StoreChoice stores_;
};

}  // namespace troika::comm::shm
