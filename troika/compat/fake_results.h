// Results of operators by rules for their shapes.
#pragma once

#include <ATen/core/stack.h>

#include <string>

namespace troika::compat {

// Whether results_by_rule() knows the results of an operator: some have no rule on device `meta`,
// and some would compute for long. Memory that a kernel uses while it runs is used by the rule,
// too.
bool has_rule(const std::string& operator_name);
// Returns one entry per result; `arguments` are those of the operator's schema.
torch::jit::Stack results_by_rule(const std::string& operator_name,
                                  const torch::jit::Stack& arguments);

}  // namespace troika::compat
