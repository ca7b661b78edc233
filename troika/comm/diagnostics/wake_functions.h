// Functions that end pending waits.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <utility>

namespace troika::comm {

// All functions may be called from any thread.
class WakeFunctions {
 public:
  // Registers a function, one per owner; an empty function unregisters. Blocks while call_all()
  // runs, so no function runs after it was unregistered.
  void set(const void* owner, std::function<void()> wake) {
    const std::lock_guard lock(mutex_);
    if (wake) {
      wakes_[owner] = std::move(wake);
    } else {
      wakes_.erase(owner);
    }
  }
  // Calls all functions, which must not call set().
  void call_all() {
    const std::lock_guard lock(mutex_);
    for (const auto& [owner, wake] : wakes_) wake();
  }

 private:
  std::mutex mutex_;
  std::map<const void*, std::function<void()>> wakes_;  // by owner
};

}  // namespace troika::comm
