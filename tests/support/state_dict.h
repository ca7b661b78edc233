// Looks into a state; found by its argument.
#pragma once

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "troika/state/state_dict.h"

namespace troika::state {

// The tensor of that name; undefined, and a failure, where there is none.
inline at::Tensor tensor_of(const StateDict& state, const std::string& name) {
  const auto found = std::ranges::find(state, name, &Entry::first);
  if (found != state.end()) return found->second;
  ADD_FAILURE() << "no tensor " << name;
  return {};
}

}  // namespace troika::state
