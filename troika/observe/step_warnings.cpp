#include "troika/observe/step_warnings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "troika/base/log.h"
#include "troika/base/text.h"

namespace troika::observe {

StepWarnings::StepWarnings(bool is_main)
    : is_main_(is_main), guard_([this](const std::string& message, const std::string& place) {
        take(message, place);
      }) {}

void StepWarnings::watch_losses(std::optional<compat::LossWatch>& watch) {
  if (std::exchange(has_watched_, true) || !is_main_) return;
  watch.emplace([this](std::string_view loss, c10::IntArrayRef input, c10::IntArrayRef target) {
    if (std::exchange(has_broadcast_, true)) return;
    log::warn(
        "[observe] {} takes an input of shape [{}] and a target of shape [{}]: it broadcasts "
        "them, which likely gives wrong results; give both the same shape",
        loss, fmt::join(input, ", "), fmt::join(target, ", "));
  });
}

void StepWarnings::take(const std::string& message, const std::string& place) {
  if (!is_main_ || !places_.insert(place).second) return;
  // The backward pass of a loss already reported warns, too.
  if (has_broadcast_ && message.find("was resized since it had shape") != std::string::npos) return;
  log::warn("LibTorch: {}", fmt::join(split(trim(message), '\n'), " "));
}

}  // namespace troika::observe
