// The first failure of a group.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>

#include "troika/base/error.h"

namespace troika::comm {

// All functions may be called from any thread.
class FirstFailure {
 public:
  // Keeps `cause`. Returns false if there was a failure before.
  bool set(const Error& cause);
  bool is_set() const { return is_set_; }
  // After a failure, throws an Error of its kind that says so.
  void refuse_if_set() const {
    if (is_set_) refuse();
  }

 private:
  [[noreturn]] void refuse() const;

  std::mutex mutex_;  // for set()
  std::optional<Error> cause_;
  std::atomic<bool> is_set_ = false;  // cause_ does not change any more
};

}  // namespace troika::comm
