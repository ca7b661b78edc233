// The places of a plan's keys in its text, for errors.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "troika/layout/stage_cut.h"

namespace troika::layout {

class PlanPlaces {
 public:
  // For a plan that has no text.
  PlanPlaces() = default;
  // `toml` is text that Plan::parse() accepts, `name` the file's name.
  PlanPlaces(std::string_view toml, std::string_view name);

  // Returns ` (plan.toml:12)` for a key such as stages.cut; nothing for a key that is not there.
  std::string of(const std::string& key) const;

 private:
  std::map<std::string, std::string> places_;
};

// As parse_cut() without a place, which the errors name.
StageEnds parse_cut(std::string_view text, const std::vector<std::string>& blocks,
                    const std::string& place);

}  // namespace troika::layout
