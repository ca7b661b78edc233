// Collectives directly in shared memory: ranks read each other's buffers, or, if the buffers are
// private, each other's staging areas, which stay in cache.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "troika/comm/shm/arena.h"
#include "troika/comm/shm/board.h"
#include "troika/comm/shm/stores.h"

namespace troika::comm::shm {

// Runs collectives in shared memory. Every rank reduces its own part, with the terms in the order
// of ranks, so all ranks get the same bits.
class NativeCollectives {
 public:
  // The bytes of a rank's staging area.
  static size_t staging_bytes();

  // Member m of the board is rank arena_ranks[m] of the arena. `in_place` must be the same on all
  // ranks. If it is false, no rank accesses another's buffers, so a rank whose call failed may
  // reuse its own.
  NativeCollectives(std::shared_ptr<Board> board, std::shared_ptr<Arena> arena,
                    std::vector<int> arena_ranks, bool in_place);
  // Announces this call to the other ranks, with its data if small, and with the location of its
  // buffer.
  void publish(const Call& call);
  // Call after all ranks have published. Carries the call out, or returns false (see
  // GroupImpl::try_native).
  bool run(const Call& call, Deadline deadline);

  // Exchanges the locations of all staging areas. Collective, once.
  void exchange_staging(Deadline deadline);
  // Whether every rank is done with the calls that this rank has run.
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
  // These return how many turns they took.
  size_t all_reduce_staged(const Call& call, Deadline deadline);
  size_t reduce_scatter_staged(const Call& call, Deadline deadline);
  size_t move_staged(const Call& call, Deadline deadline);
  // Starts turns that stage at most `bytes` each, but not more than a chunk.
  void start_turns(size_t bytes);
  // Returns the staging memory of a rank in a turn. Turns are counted from start_turns().
  char* staging(int rank, size_t turn) const;

  const std::shared_ptr<Board> board_;
  const std::shared_ptr<Arena> arena_;
  const std::vector<int> arena_ranks_;
  const int me_;
  const int size_;
  const bool in_place_;
  Arena::Piece own_staging_;
  std::vector<char*> staging_;
  int64_t last_call_ = -1;  // the last call that was run here
  // Bytes used in the staging areas so far, and bytes of one turn; the same on all ranks.
  size_t staged_ = 0;
  size_t turn_bytes_ = 0;
  StoreChoice stores_;
};

}  // namespace troika::comm::shm
