#include "troika/comm/diagnostics/departed_ranks.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "troika/base/text.h"

namespace troika::comm {

void DepartedRanks::add(int rank, const std::string& farewell) {
  ranks_.push_back(rank);
  const auto groups = nlohmann::json::parse(farewell, nullptr, false);
  if (!groups.is_object()) return;
  for (const auto& [id, text] : groups.items()) {
    const auto number = parse_int(id);
    if (!number || !text.is_string()) continue;
    if (auto last = RankStatus::from_text(text)) {
      last_[rank][static_cast<uint32_t>(*number)] = *std::move(last);
    }
  }
}

bool DepartedRanks::contains(int rank) const {
  return std::ranges::find(ranks_, rank) != ranks_.end();
}

std::optional<RankStatus> DepartedRanks::last_of(int rank, uint32_t group) const {
  const auto of_rank = last_.find(rank);
  if (of_rank == last_.end()) return std::nullopt;
  const auto last = of_rank->second.find(group);
  return last == of_rank->second.end() ? std::nullopt : std::optional(last->second);
}

}  // namespace troika::comm
