// How a rank writes data that other ranks will read.
#pragma once

#include <array>
#include <cstddef>
#include <limits>
#include <map>
#include <utility>

#include "troika/base/clock.h"

namespace troika::comm::shm {

// Copies memory. With `streams`, the copy bypasses the caches (non-temporal stores, if the
// processor has them), and the bytes are in memory before any store after the call.
void give(char* into, const char* from, size_t bytes, bool streams);

// Measures which kind of store is faster for one kind of call. Between processors that share a
// cache, normal stores are faster, by up to two times; between others, streaming stores, by up to
// eight times. Where ranks run is not known, and they may move. So the first calls of every period
// are timed, some with the kind that was faster so far, some with the other kind.
class StoreTrial {
 public:
  // Whether the next call, or the call `later` calls after it, streams; is_timed() says whether the
  // next call is timed.
  bool streams(int later = 0) const;
  bool is_timed() const { return call_ >= kUntimed && call_ < kUntimed + 2 * kTried; }
  // Reports that a call was made this way. `cost` counts only if the call was timed.
  void add(bool streamed, double cost);

 private:
  // The first calls touch memory that was never used before, which is slower than either kind.
  static constexpr int kUntimed = 2;
  static constexpr int kTried = 3;
  // Periods double up to the last, because that memory is in no cache at first either.
  static constexpr int kFirstPeriod = 32;
  static constexpr int kLastPeriod = 512;
  static constexpr double kClearly = 0.9;
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  int period_ = kFirstPeriod;
  int call_ = 0;  // of the period
  bool streams_ = false;
  std::array<double, 2> least_{kNever, kNever};  // without and with streaming
};

// Chooses the kind of store from rank 0's trials. All other ranks use rank 0's choice. For each
// call: start(); write the slot as small_streams() says; send notice() to the others; take() rank
// 0's notice; finish().
class StoreChoice {
 public:
  explicit StoreChoice(bool decides) : decides_(decides) {}

  // Begins a call. `bytes` is 0 if its data do not go through a slot or a staging area, so that
  // there is nothing to choose. Small calls use slots.
  void start(int operation, size_t bytes, bool is_small);
  unsigned notice() const;
  void take(unsigned notice);
  void finish();

  // Whether this call's slot is streamed: known before the call.
  bool small_streams() const { return small_now_; }
  // Whether this call's staging is streamed; valid after take().
  bool streams() const { return streams_; }

 private:
  const bool decides_;
  StoreTrial small_;
  std::map<std::pair<int, int>, StoreTrial> staged_;  // by operation and log2 of the size
  StoreTrial* trial_ = nullptr;                       // of the current call; may be null
  bool is_small_ = false;
  size_t bytes_ = 0;
  Stopwatch watch_;
  bool small_now_ = false;
  bool small_next_ = false;
  bool streams_ = false;
};

}  // namespace troika::comm::shm
