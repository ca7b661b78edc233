// Calls that a back end has queued on a device, and that run there after they have ended on the
// host.
#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

#include "troika/base/error.h"
#include "troika/comm/core.h"

namespace troika::comm {

void Group::Core::end_or_watch(const CollectiveFingerprint& fingerprint, Deadline deadline) {
  auto work = impl_->take_queued();
  if (!work) return recorder_->ended(fingerprint.sequence, true);
  recorder_->left_on_device(fingerprint.sequence);
  {
    const std::lock_guard lock(mutex_);
    calls_.on_device.push_back({fingerprint, deadline, std::move(work)});
    start_thread();
  }
  changed_.notify_all();
}

void Group::Core::look_at_device(std::unique_lock<std::mutex>& lock) {
  auto looked_at = std::exchange(calls_.on_device, {});
  lock.unlock();
  std::exception_ptr failure;
  for (auto& [fingerprint, deadline, work] : looked_at) {
    const int64_t sequence = fingerprint.sequence;
    try {
      if (work->done()) {
        work.reset();
        recorder_->ended(sequence, true);
        continue;
      }
      impl_->lifeline()->require_live(impl_->info().tag_space);
      if (deadline.passed()) {
        throw Error("comm", ErrorKind::timeout, {.what = "the device was not done in time"});
      }
    } catch (const Error& error) {
      const Error why =
          explained(error, fingerprint.describe(), options_.timeout, [&](Deadline asking) {
            return impl_->lifeline()->missing(impl_->info().id, sequence, asking);
          });
      failure = std::make_exception_ptr(why);
      break;
    } catch (...) {
      failure = std::current_exception();
      break;
    }
  }
  if (failure) {
    // All calls behind the failed one are given up, too.
    for (const auto& call : looked_at) {
      if (call.work) recorder_->ended(call.fingerprint.sequence, false);
    }
    fail(failure);
    for (auto& call : looked_at) {
      if (call.work) std::exchange(call.work, nullptr)->give_up();
    }
  }
  std::erase_if(looked_at, [](const OnDevice& call) { return !call.work; });
  lock.lock();
  calls_.on_device.insert(calls_.on_device.begin(), std::make_move_iterator(looked_at.begin()),
                          std::make_move_iterator(looked_at.end()));
}

}  // namespace troika::comm
