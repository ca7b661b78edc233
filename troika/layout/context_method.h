// How the ranks of a context axis compute attention together.
#pragma once

#include <string>
#include <vector>

namespace troika::layout {

enum class ContextMethod {
  ring,        // keys and values go round a ring (Liu et al. 2023, arXiv 2310.01889)
  all_to_all,  // each rank gets all tokens of some heads (Jacobs et al. 2023, arXiv 2309.14509)
};

// Returns "ring", "all_to_all".
const std::vector<std::string>& context_method_names();
// Throws Error(usage) for an unknown name.
ContextMethod parse_context_method(const std::string& name);

}  // namespace troika::layout
