// The micro-batches whose activations a rank keeps while its passes run.
#pragma once

#include <compare>
#include <vector>

#include "troika/layout/schedules/schedule.h"

namespace troika::plan {

// A pass, and the other micro-batches at its begin: those that wait for their backward passes, and
// those whose input parts are done, which wait for their weight parts. If two forward passes start
// together, the second one is among the others.
struct KeptAtPass {
  layout::ActionKind kind = layout::ActionKind::forward;  // or backward, backward_input or _weight
  bool has_gradients = false;  // whether backward passes before it have made gradients
  int whole = 0;               // that wait for their backward passes
  int weight_parts = 0;        // that wait for their weight parts

  auto operator<=>(const KeptAtPass&) const = default;
};

// Returns the passes of a rank with one stage, without those at which no more is kept than at
// others of their kind. `splits`: whether its backward passes are in two parts where the schedule
// has them.
std::vector<KeptAtPass> kept_at_passes(const std::vector<layout::Action>& actions, bool splits);

}  // namespace troika::plan
