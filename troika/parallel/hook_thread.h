// Runs what averages buckets beside the backward pass, one bucket after another.
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

// Makes bucket.flat what every rank is to apply, usually the mean over the group's ranks: the same
// bits on all of them. It may block; its collectives are ordered as those of any program, since all
// ranks call it for the same buckets in the same order, on one thread.
using BucketHook = std::function<void(const comm::Group&, const comm::GradientBucket&)>;

class HookThread {
 public:
  // `group` is for the hook alone: collectives that others call meanwhile would mix with its own.
  // `trace`, if any, takes a span a bucket.
  HookThread(comm::Group group, BucketHook hook, Trace* trace = nullptr);
  // Lets the bucket under way end and drops those that wait.
  ~HookThread();
  HookThread(const HookThread&) = delete;
  HookThread& operator=(const HookThread&) = delete;

  // Returns at once. The bucket must stay, untouched, until wait() has returned.
  void submit(const comm::GradientBucket& bucket);
  // Blocks until all submitted buckets are done. Throws what the hook threw first; no later bucket
  // has then been started.
  void wait();

 private:
  struct Job {
    const comm::GradientBucket* bucket;
    c10::Stream stream;  // the submitter's, on which the gradients were made
  };

  void work();

  const comm::Group group_;
  const BucketHook hook_;
  Trace* const trace_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> waiting_;
  bool busy_ = false;
  bool closing_ = false;
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace troika::parallel
