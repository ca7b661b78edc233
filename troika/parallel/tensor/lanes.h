// Two forward passes of a rank that take turns, so that one computes while the collectives of the
// other run: the row-parallel sums of a micro-batch run behind the computation of the next one.
#pragma once

#include <c10/core/Device.h>

#include <array>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "troika/comm/group.h"

namespace troika {
class Trace;
}

namespace troika::parallel {

// Runs two passes, the lanes, on a thread each. Only one of them computes at a time: a pass lets
// the other one go on when it has started a collective over a tensor axis (take_turns()) and when
// it ends. So the order of all operators and collectives depends on nothing but the passes, and is
// the same on all ranks that run the same passes. Not thread-safe.
class Lanes {
 public:
  using Pass = std::function<void()>;

  // The passes compute on `device`. `trace`, unless it is null, gets the computation beside
  // collectives (docs/timeline.md); must outlive this object.
  explicit Lanes(c10::Device device, Trace* trace = nullptr);
  ~Lanes();
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;

  // Runs `first` on the calling thread, which begins, and `second` on the thread of this object,
  // with the caller's LibTorch state (gradients on or off), handler of LibTorch's warnings, number
  // of LibTorch's threads and current stream of the device. Blocks until both have ended. If a pass
  // throws, the other one ends at its next turn, by an exception that is not a std::exception;
  // rethrows the first error.
  void run(const Pass& first, const Pass& second);

  // Whether the calling thread is a lane whose other lane has not ended. Then the caller starts
  // collectives with CallOptions::async_op, and calls wait().
  static bool take_turns();
  // Lets the other lane of the calling thread compute until its next turn, if take_turns(), and
  // then blocks until the collective has ended. Throws the error of the collective.
  static void wait(const comm::Work& work);

 private:
  struct OwnLane;
  static OwnLane& own_lane();

  void work();
  void run_lane(size_t lane, const Pass& pass);
  // Returns when it is this lane's turn again.
  void hand_over(size_t lane);
  // Ends the span of the computation beside a collective of the other lane, if there is one.
  void record_computation(OwnLane& own) const;

  const c10::Device device_;
  Trace* const trace_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t turn_ = 0;  // the lane that computes
  std::array<bool, 2> ended_{true, true};
  const Pass* second_ = nullptr;  // not begun yet
  std::exception_ptr failure_;    // the first one of this run
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace troika::parallel
