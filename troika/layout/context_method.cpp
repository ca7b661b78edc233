#include "troika/layout/context_method.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "troika/layout/errors/refuse.h"

namespace troika::layout {

const std::vector<std::string>& context_method_names() {
  static const std::vector<std::string> names{"ring", "all_to_all"};
  return names;
}

ContextMethod parse_context_method(const std::string& name) {
  const auto& names = context_method_names();
  const auto found = std::ranges::find(names, name);
  if (found != names.end()) return static_cast<ContextMethod>(found - names.begin());
  refuse("a method of a context axis", name, fmt::format("one of {}", fmt::join(names, ", ")));
}

}  // namespace troika::layout
