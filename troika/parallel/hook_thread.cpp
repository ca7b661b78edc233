#include "troika/parallel/hook_thread.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

namespace troika::parallel {

HookThread::HookThread(comm::Group group, BucketHook hook, Trace* trace)
    : group_(std::move(group)),
      hook_(std::move(hook)),
      trace_(trace),
      thread_([this] { work(); }) {}

HookThread::~HookThread() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void HookThread::submit(const comm::GradientBucket& bucket) {
  const auto device = bucket.flat.device();
  const auto stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back({&bucket, stream});
  }
  changed_.notify_all();
}

void HookThread::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return failure_ || (waiting_.empty() && !busy_); });
  if (failure_) std::rethrow_exception(failure_);
}

void HookThread::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return closing_ || (!waiting_.empty() && !failure_); });
    if (closing_) return;
    const QueuedBucket job = waiting_.front();
    waiting_.pop_front();
    busy_ = true;
    lock.unlock();
    std::exception_ptr failure;
    try {
      const c10::StreamGuard guard(job.stream);
      const TraceSpan span(trace_, "communication", "bucket", job.bucket->index,
                           static_cast<int64_t>(job.bucket->flat.nbytes()));
      hook_(group_, *job.bucket);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    busy_ = false;
    failure_ = failure;
    changed_.notify_all();
  }
}

}  // namespace troika::parallel
