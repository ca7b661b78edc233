#include "troika/layout/plan_places.h"

#include <fmt/format.h>
#include <toml++/toml.h>

namespace troika::layout {

PlanPlaces::PlanPlaces(std::string_view toml, std::string_view name) {
  const auto text = toml::parse(toml, name);
  for (const auto& [section, keys] : text) {
    if (!keys.is_table()) continue;
    for (const auto& [key, value] : *keys.as_table()) {
      places_[fmt::format("{}.{}", section.str(), key.str())] =
          fmt::format(" ({}:{})", name, value.source().begin.line);
    }
  }
}

std::string PlanPlaces::of(const std::string& key) const {
  const auto found = places_.find(key);
  return found == places_.end() ? std::string() : found->second;
}

}  // namespace troika::layout
