// Shapes of results for operators that LibTorch has no rule for on device `meta`.
#pragma once

#include <ATen/core/stack.h>

#include <string>

namespace troika::compat {

bool has_rule(const std::string& operator_name);
// Returns one entry per result; `arguments` are those of the operator's schema.
torch::jit::Stack results_by_rule(const std::string& operator_name,
                                  const torch::jit::Stack& arguments);

}  // namespace troika::compat
