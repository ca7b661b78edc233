#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "troika/base/error.h"
#include "troika/comm/core.h"

namespace troika::comm {

void Work::wait() const {
  static const auto never = Deadline::after(Milliseconds::max());
  if (state_) wait(never);
}

void Work::wait(Deadline deadline) const {
  if (!state_) return;
  std::unique_lock lock(state_->mutex);
  if (std::exchange(state_->has_rest, false)) {
    lock.unlock();
    std::exception_ptr failure;
    try {
      state_->run_rest(deadline);
    } catch (...) {
      failure = std::current_exception();
    }
    state_->finish(failure);
    if (failure) std::rethrow_exception(failure);
    return;  // a message has no end on a device
  }
  if (!state_->changed.wait_until(lock, deadline.at(), [&] { return state_->done; })) {
    throw Error("comm", ErrorKind::timeout, {.what = "a collective is not done by the deadline"});
  }
  if (state_->failure) std::rethrow_exception(state_->failure);
  if (const auto& end = state_->on_device) {
    end->block(c10::impl::VirtualGuardImpl(end->device_type()).getStream(end->device()));
  }
}

bool Work::done() const {
  if (!state_) return true;
  const std::lock_guard lock(state_->mutex);
  return state_->done || (state_->has_rest && state_->is_over());
}

std::optional<Work::Times> Work::times() const {
  if (!state_) return std::nullopt;
  const std::lock_guard lock(state_->mutex);
  return state_->times;
}

void Work::State::finish(std::exception_ptr with, std::optional<Times> when,
                         std::optional<c10::Event> end_on_device) {
  const std::lock_guard lock(mutex);
  on_device = std::move(end_on_device);
  done = true;
  times = when;
  failure = std::move(with);
  changed.notify_all();
}

}  // namespace troika::comm
