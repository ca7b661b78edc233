#include "troika/comm/first_failure.h"

#include <fmt/format.h>

namespace troika::comm {

bool FirstFailure::set(const Error& cause) {
  const std::lock_guard lock(mutex_);
  if (is_set_) return false;
  cause_ = cause;
  is_set_ = true;
  return true;
}

void FirstFailure::refuse() const {
  throw Error(
      "comm", cause_->kind(),
      {.what = fmt::format("this group is unusable since an earlier failure: {}", cause_->what())});
}

}  // namespace troika::comm
