// Reads entries of a state. Found by argument-dependent lookup.
#pragma once

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "troika/state/state_dict.h"

namespace troika::state {

// Returns the tensor of this name. If there is none, fails the test and returns an undefined
// tensor.
inline at::Tensor tensor_of(const StateDict& state, const std::string& name) {
  const auto found = std::ranges::find(state, name, &Entry::first);
  if (found != state.end()) return found->second;
  ADD_FAILURE() << "no tensor " << name;
  return {};
}

}  // namespace troika::state
