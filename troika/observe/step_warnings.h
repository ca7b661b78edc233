// Logs LibTorch's warnings in the steps of a run.
#pragma once

#include <optional>
#include <set>
#include <string>

#include "troika/compat/loss_watch.h"
#include "troika/compat/warnings.h"

namespace troika::observe {

// During its lifetime, turns LibTorch's warnings on this thread into log lines, once for each place
// in LibTorch that warns. All ranks run the same operators, so only the rank with `is_main` logs.
class StepWarnings {
 public:
  explicit StepWarnings(bool is_main);

  // The first call sets `watch`, which warns of losses that broadcast their arguments and must live
  // during a micro-batch. Later calls do nothing.
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
