// The settings that the search tries.
#pragma once

#include <vector>

#include "troika/plan/search/step_model.h"

namespace troika::plan {

// The most devices of which the search tries every number.
inline constexpr int kMostExactDevices = 16;

// Returns all settings apart from tensor and context axes and the number of devices, the simplest
// first. `cuts_layers`: those for groups of several ranks on these axes, as far as runs combine
// them.
std::vector<StepSettings> all_settings(const StepModel& model, bool cuts_layers);

// Returns the settings on all numbers of devices, descending, for groups of one rank on a tensor
// and a context axis, or with `cuts_layers` of several: those that the problem allows.
std::vector<StepSettings> on_devices(const StepModel& model, StepSettings settings,
                                     bool cuts_layers);

// Whether `more` is `less` with more of its data in files, which is never faster.
bool adds_offload(const StepSettings& more, const StepSettings& less);

}  // namespace troika::plan
