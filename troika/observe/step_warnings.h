// Warnings of LibTorch in the steps of a run.
#pragma once

#include <optional>
#include <set>
#include <string>

#include "troika/compat/loss_watch.h"
#include "troika/compat/warnings.h"

namespace troika::observe {

// While it lives, what LibTorch warns of on this thread is a line of the log, once for each place
// in LibTorch that warns. Ranks compute alike, so only one says so (`is_main`).
class StepWarnings {
 public:
  explicit StepWarnings(bool is_main);

  // The first call sets `watch`, which warns of losses that broadcast their arguments: to live
  // during a micro-batch. The others do nothing.
  void watch_losses(std::optional<compat::LossWatch>& watch);

 private:
  void take(const std::string& message, const std::string& place);

  const bool is_main_;
  bool has_watched_ = false;
  bool has_broadcast_ = false;
  std::set<std::string> places_;
  const compat::WarningGuard guard_;
};

}  // namespace troika::observe
