// The settings that the search tries.
#pragma once

#include <array>
#include <vector>

#include "troika/plan/search/step_model.h"

namespace troika::plan {

// The most devices of which the search tries every number.
inline constexpr int kMostExactDevices = 16;

// The axes whose ranks compute blocks together.
enum class AxesKind {
  none,
  tensor,   // without a context axis
  context,  // with a tensor axis or without one
};
inline constexpr std::array kAxesKinds{AxesKind::none, AxesKind::tensor, AxesKind::context};

// Returns all settings apart from the axes of this kind and the number of devices, the simplest
// first, as far as runs combine them with these axes. Settings with tensor_overlap follow the same
// ones without it.
std::vector<StepSettings> all_settings(const StepModel& model, AxesKind kind);

// Returns the settings on all numbers of devices, descending, for each choice of axes of this kind:
// those that the problem allows.
std::vector<StepSettings> on_devices(const StepModel& model, StepSettings settings, AxesKind kind);

// Whether `more` is `less` with more of its data in files, which is never faster.
bool adds_offload(const StepSettings& more, const StepSettings& less);

}  // namespace troika::plan
