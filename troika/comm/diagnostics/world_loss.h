// The first loss of a rank, which ends a world.
#pragma once

#include <atomic>
#include <optional>

#include "troika/base/error.h"

namespace troika::comm {

// set() is called by one thread at a time, the other functions by any thread.
class WorldLoss {
 public:
  // Returns false if there was a loss before. `is_reported`: another rank reported it.
  bool set(const Error& cause, bool is_reported) {
    if (is_set_) return false;
    cause_ = cause;
    is_reported_ = is_reported;
    is_set_ = true;
    return true;
  }
  bool is_set() const { return is_set_; }
  bool is_reported() const { return is_reported_; }
  std::optional<Error> cause() const { return is_set_ ? cause_ : std::nullopt; }

 private:
  std::optional<Error> cause_;  // does not change once is_set_
  std::atomic<bool> is_reported_ = false;
  std::atomic<bool> is_set_ = false;
};

}  // namespace troika::comm
