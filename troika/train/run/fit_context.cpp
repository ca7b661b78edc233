#include "troika/train/run/fit_context.h"

namespace troika::train {

void FitContext::ask_to_stop(const std::string& reason) {
  if (stop_reason.empty()) stop_reason = reason;
}

bool FitContext::is_done_after(int64_t epochs) const {
  const auto& limits = options.trainer;
  const bool may_stop = epochs >= limits.min_epochs && at.step >= limits.min_steps;
  return (may_stop && !stop_reason.empty()) ||
         (limits.max_steps >= 0 && at.step >= limits.max_steps) ||
         (limits.max_epochs >= 0 && epochs >= limits.max_epochs);
}

}  // namespace troika::train
