#include "troika/train/run/fit_context.h"

#include <fmt/format.h>

#include "troika/base/error.h"

namespace troika::train {

void FitContext::ask_to_stop(const std::string& reason) {
  if (requests.stop_reason.empty()) requests.stop_reason = reason;
}

std::filesystem::path FitContext::save_checkpoint(const std::filesystem::path& path,
                                                  bool weights_only) {
  if (actions.save_checkpoint) return actions.save_checkpoint(path, weights_only);
  throw Error("train", ErrorKind::usage,
              {.what = "no run to save as " + path.string(),
               .got = fmt::format("a hook of {}()", run_mode_name(mode)),
               .expected = "a hook of fit()"});
}

bool FitContext::is_done_after(int64_t epochs) const {
  const auto& limits = options.trainer;
  const bool may_stop = epochs >= limits.min_epochs && at.step >= limits.min_steps;
  return (may_stop && !requests.stop_reason.empty()) ||
         (limits.max_steps >= 0 && at.step >= limits.max_steps) ||
         (limits.max_epochs >= 0 && epochs >= limits.max_epochs);
}

}  // namespace troika::train
