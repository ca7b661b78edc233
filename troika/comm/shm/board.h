// Where the ranks of a group on one machine tell each other how far they are: a segment of shared
// memory with one cell per rank, and the waiting on it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "troika/base/clock.h"
#include "troika/comm/call.h"
#include "troika/comm/shm/buddy.h"
#include "troika/comm/shm/cells.h"
#include "troika/comm/shm/presence.h"
#include "troika/comm/shm/segment.h"

namespace troika::comm::shm {

// Calls of at most so many bytes a rank travel inside their slot.
inline constexpr size_t kSlotBytes = size_t{8} << 10;

// One call of one rank. Two take turns: a rank comes to the call after next only when all have come
// to the next, so nobody reads a slot that is being written.
struct Slot {
  // In one cache line with the facts of the call, so that a rank that waits for this number has
  // them with it.
  alignas(64) std::atomic<uint64_t> published;  // Board::publish()
  Ref location = 0;                             // of its buffer, if that is in shared memory
  Print print;
  alignas(64) char data[kSlotBytes];
};
static_assert(offsetof(Slot, print) + offsetof(Print, label) <= 64);

class Board {
 public:
  // A board for the `size` ranks of the group with that tag space, seen by `rank`. The memory
  // starts zeroed.
  Board(Segment segment, int rank, int size, uint32_t tag_space,
        std::shared_ptr<Presence> presence);
  // Says what is waited for, in an error.
  using Awaited = std::function<std::string()>;

  static size_t bytes_for(int size);

  int rank() const { return rank_; }
  int size() const { return size_; }

  Slot& slot(int rank, int64_t sequence) const;
  // This rank's slot of call `sequence` is written. Others get two bits with the notice.
  void publish(int64_t sequence, unsigned notice = 0);
  bool has_published(int rank, int64_t sequence) const;
  // The bits of a rank that has published.
  unsigned notice(int rank, int64_t sequence) const;

  // Returns when every rank has called it as often as this one.
  void barrier(Deadline deadline);

  // This rank will not touch the others' memory for call `sequence` any more.
  void finish(int64_t sequence);
  bool has_finished(int rank, int64_t sequence) const;

  // Messages from one rank to another; see Mailbox.
  struct Lane {
    alignas(64) std::atomic<Ref> newest_block;  // that is not taken off the list yet
    Cells cells;
  };
  Lane& lane(int from, int to) const;

  // This rank will send no more.
  void leave();
  bool has_left(int rank) const;

  // Blocks until `done`, which is tried again and again, and after every ring for this rank. Throws
  // the loss of a rank (Presence::require_all()), and Error(timeout) saying `what` is missing.
  template <typename Done>
  void await(Done&& done, Deadline deadline, const Awaited& what) {
    for (int spins = 0; spins < spins_; ++spins) {
      if (done()) return;
      pause(spins);
    }
    sleep_until(std::ref(done), deadline, what);
  }
  // Between two tries of a thread that does not sleep.
  void pause(int tries) const;
  // Whether await() sleeps between the tries after so many.
  bool sleeps_after(int tries) const { return tries >= spins_; }
  // Has `drive` called while await() sleeps; it returns whether it wants to be called again soon.
  // Called before the first await() of another thread.
  void drive_while_waiting(std::function<bool()> drive) { drive_ = std::move(drive); }
  const std::function<bool()>& drive() const { return drive_; }

  // Wakes whoever sleeps in await() on that rank. Call after the change it waits for, which must be
  // a sequentially consistent store, as must be the load in its `done`.
  void ring(int rank) const;
  void ring_others() const;

 private:
  struct Cell;
  Cell& cell(int rank) const;
  static constexpr int kNoticeBits = 2;  // the lowest of Slot::published; then sequence + 1
  void sleep_until(const std::function<bool()>& done, Deadline deadline, const Awaited& what);
  void choose_spins();

  const Segment segment_;
  const int rank_;
  const int size_;
  const uint32_t tag_space_;
  const std::shared_ptr<Presence> presence_;
  std::function<bool()> drive_;
  uint64_t stage_ = 0;
  int spins_ = 0;
  bool crowded_ = false;  // more ranks than processors
};

}  // namespace troika::comm::shm
