// A thread that averages buckets during the backward pass, one bucket after another.
#pragma once

#include <c10/core/Stream.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "troika/base/trace.h"
#include "troika/comm/codec/codec.h"

namespace troika::parallel {

// Replaces bucket.flat by the gradient that all ranks apply, usually the mean over the group's
// ranks. The result must have the same bits on all ranks. It may block. All ranks call it for the
// same buckets in the same order, on one thread, so its collectives need no further ordering.
using BucketHook = std::function<void(const comm::Group&, const comm::GradientBucket&)>;

class HookThread {
 public:
  // Only the hook may use `group`, since collectives of other threads would mix with its own.
  // `trace`, if any, records a span per bucket.
  HookThread(comm::Group group, BucketHook hook, Trace* trace = nullptr);
  // Waits for the bucket in progress and drops the queued ones.
  ~HookThread();
  HookThread(const HookThread&) = delete;
  HookThread& operator=(const HookThread&) = delete;

  // Queues the bucket and returns at once. The bucket must stay alive and untouched until wait()
  // has returned.
  void submit(const comm::GradientBucket& bucket);
  // Blocks until all submitted buckets are done. Rethrows the hook's first error; no bucket is
  // started after that error.
  void wait();

 private:
  struct QueuedBucket {
    const comm::GradientBucket* bucket;
    c10::Stream stream;  // the submitter's current stream, on which the gradients were computed
  };

  void work();

  const comm::Group group_;
  const BucketHook hook_;
  Trace* const trace_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<QueuedBucket> waiting_;
  bool busy_ = false;
  bool closing_ = false;
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace troika::parallel
