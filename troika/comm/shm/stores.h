// How a rank writes what other ranks are to read.
#pragma once

#include <array>
#include <cstddef>
#include <limits>
#include <map>
#include <utility>

#include "troika/base/clock.h"

namespace troika::comm::shm {

// Copies. `streams`: around the caches (non-temporal stores, where the processor has them), and the
// bytes are in memory before what is stored after the call.
void give(char* into, const char* from, size_t bytes, bool streams);

// Which way of giving is faster for one kind of call. Between processors that share a cache it is
// to leave the bytes there, by a factor of two; between others it is to stream them, by up to
// eight. Nobody says where ranks run, and they may move. So of every period of calls the first are
// timed, some by the way that was faster so far and some by the other one.
class StoreTrial {
 public:
  // Whether the next call, or the one after `later` more, is to stream, and whether to be timed.
  bool streams(int later = 0) const;
  bool is_timed() const { return call_ >= kUntimed && call_ < kUntimed + 2 * kTried; }
  // A call was made this way. `cost` counts if it was to be timed.
  void add(bool streamed, double cost);

 private:
  // The first calls touch memory that was never used before, which takes longer than either way.
  static constexpr int kUntimed = 2;
  static constexpr int kTried = 3;
  // Periods double up to the last, as that memory is not yet in anybody's cache, either.
  static constexpr int kFirstPeriod = 32;
  static constexpr int kLastPeriod = 512;
  static constexpr double kClearly = 0.9;
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  int period_ = kFirstPeriod;
  int call_ = 0;  // of the period
  bool streams_ = false;
  std::array<double, 2> least_{kNever, kNever};  // without and with streaming
};

// Rank 0's trials, and what each rank knows of them. For each call: start(); then, with the slot
// written as small_streams() says, notice() goes to the others; take() of rank 0's; finish().
class StoreChoice {
 public:
  explicit StoreChoice(bool decides) : decides_(decides) {}

  // `bytes`: 0 where there is nothing to choose. Small calls travel in slots.
  void start(int operation, size_t bytes, bool is_small);
  unsigned notice() const;
  void take(unsigned notice);
  void finish();

  // Whether this call's slot is to be streamed: known before the call.
  bool small_streams() const { return small_now_; }
  // Whether this call's staging is; from take() on.
  bool streams() const { return streams_; }

 private:
  const bool decides_;
  StoreTrial small_;
  std::map<std::pair<int, int>, StoreTrial> staged_;  // by operation and magnitude of the size
  StoreTrial* trial_ = nullptr;                       // of the call under way; null: none
  bool is_small_ = false;
  size_t bytes_ = 0;
  Stopwatch watch_;
  bool small_now_ = false;
  bool small_next_ = false;
  bool streams_ = false;
};

}  // namespace troika::comm::shm
