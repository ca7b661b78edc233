// The shared-memory segment in which the ranks of a group on one machine publish their progress,
// with one cell per rank, and the functions that wait for it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "troika/base/clock.h"
#include "troika/comm/call/call.h"
#include "troika/comm/shm/buddy.h"
#include "troika/comm/shm/cells.h"
#include "troika/comm/shm/presence.h"
#include "troika/comm/shm/segment.h"

namespace troika::comm::shm {

// Calls of at most this many bytes per rank are sent inside their slot.
inline constexpr size_t kSlotBytes = size_t{8} << 10;

// One call of one rank. Calls alternate between two slots: a rank starts the call after the next
// only when all ranks have started the next, so nobody reads a slot that is being written.
struct CallSlot {
  // In one cache line with the fields that identify the call: a rank that waits for this number
  // gets them with it.
  alignas(64) std::atomic<uint64_t> published;  // Board::publish()
  Ref location = 0;                             // of the call's buffer, if that is in shared memory
  CollectiveFingerprint fingerprint;
  alignas(64) char data[kSlotBytes];
};
static_assert(offsetof(CallSlot, fingerprint) + offsetof(CollectiveFingerprint, label) <= 64);

class Board {
 public:
  // Makes the board, as seen by `rank`, for the `size` ranks of the group with that tag space. The
  // segment must be zeroed.
  Board(Segment segment, int rank, int size, uint32_t tag_space,
        std::shared_ptr<Presence> presence);
  // Describes what is waited for, for an error.
  using Awaited = std::function<std::string()>;

  static size_t bytes_for(int size);

  int rank() const { return rank_; }
  int size() const { return size_; }

  CallSlot& slot(int rank, int64_t sequence) const;
  // Announces that this rank's slot of call `sequence` is written. `notice` is two bits for the
  // other ranks.
  void publish(int64_t sequence, unsigned notice = 0);
  bool has_published(int rank, int64_t sequence) const;
  // Returns the notice of a rank that has published.
  unsigned notice(int rank, int64_t sequence) const;

  // Returns when every rank has called barrier() as often as this rank.
  void barrier(Deadline deadline);

  // Announces that this rank will not access the other ranks' memory for call `sequence` any more.
  void finish(int64_t sequence);
  bool has_finished(int rank, int64_t sequence) const;

  // Messages from one rank to another; see Outbox. A lane keeps the pages that messages have used,
  // at most 76 KiB; the lanes of ranks that exchange no messages take no physical memory.
  struct Lane {
    alignas(64) std::atomic<Ref> newest_block;  // that is still in the list
    Cells cells;
  };
  Lane& lane(int from, int to) const;

  // Announces that this rank will send nothing more.
  void leave();
  bool has_left(int rank) const;

  // Blocks until `done` returns true; it is polled, and called again after every ring() for this
  // rank. Throws the loss of a rank (Presence::require_all()), and Error(timeout) that says what is
  // missing.
  template <typename Done>
  void await(Done&& done, Deadline deadline, const Awaited& what) {
    for (int spins = 0; spins < spins_; ++spins) {
      if (done()) return;
      pause(spins);
    }
    sleep_until(std::ref(done), deadline, what);
  }
  // Pauses between two polls of a thread that does not sleep.
  void pause(int tries) const;
  // Whether await() sleeps after this many polls.
  bool sleeps_after(int tries) const { return tries >= spins_; }
  // Calls `drive` while await() sleeps; `drive` returns whether it must be called again soon. Call
  // before the first await() of another thread.
  void drive_while_waiting(std::function<bool()> drive) { drive_ = std::move(drive); }
  const std::function<bool()>& drive() const { return drive_; }

  // Wakes the threads that sleep in await() on that rank. Call after the change they wait for. The
  // change must be a sequentially consistent store, and the load in `done` must be sequentially
  // consistent too.
  void ring(int rank) const;
  void ring_others() const;

 private:
  struct Cell;
  Cell& cell(int rank) const;
  static constexpr int kNoticeBits = 2;  // the lowest bits of CallSlot::published; the others are
                                         // sequence + 1
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
