#include "troika/swarm/gathered.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "troika/base/error.h"
#include "troika/swarm/json_text.h"
#include "troika/swarm/shares.h"

namespace troika::swarm {

namespace {

constexpr size_t kMostRows = size_t{1} << 16;

bool is_valid(const RowPart& row) {
  return row.row < kMostRows && row.average.size() <= 32 && is_weight(row.weight) &&
         row.members < kMostRows;
}

}  // namespace

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RowPart, row, average, weight, members)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Gathered, mode, bandwidth, numbers, row, is_paused)

std::string Gathered::text() const {
  return text_of(*this);
}

Gathered gathered_from(const std::string& text) {
  try {
    auto gathered = parsed<Gathered>(text);
    const bool is_known = gathered.mode == Mode::node || gathered.mode == Mode::client ||
                          gathered.mode == Mode::auxiliary;
    if (is_known && std::isfinite(gathered.bandwidth) && gathered.bandwidth >= 0 &&
        gathered.numbers <= kMostNumbers && is_valid(gathered.row)) {
      return gathered;
    }
  } catch (const Error&) {
  }
  return {};
}

namespace {

// The bandwidths that balanced_shares() gets.
std::vector<std::optional<double>> bandwidths_of(
    const std::vector<std::pair<std::string, Gathered>>& members) {
  const bool all_are_paused = std::ranges::all_of(members, [](const auto& member) {
    return member.second.mode == Mode::client || member.second.is_paused;
  });
  std::vector<std::optional<double>> bandwidths;
  for (const auto& [name, gathered] : members) {
    const bool reduces = gathered.mode != Mode::client && (all_are_paused || !gathered.is_paused);
    bandwidths.push_back(!reduces                 ? std::optional(0.0)
                         : gathered.bandwidth > 0 ? std::optional(gathered.bandwidth)
                                                  : std::nullopt);
  }
  return bandwidths;
}

}  // namespace

AveragingGroup group_of(const Match& match, std::optional<size_t> numbers, size_t least_part,
                        size_t block) {
  std::vector<std::pair<std::string, Gathered>> members;
  for (const auto& member : match.members) {
    members.emplace_back(member.name, gathered_from(member.gathered));
  }
  std::ranges::stable_sort(members, {},
                           [](const auto& member) { return member.second.row.average; });
  AveragingGroup group{.id = match.id, .members = {}};
  size_t most = 0;
  for (const auto& [name, gathered] : members) {
    group.members.push_back({.name = name, .mode = gathered.mode});
    most = std::max<size_t>(most, gathered.numbers);
  }
  size_t left = numbers.value_or(most);
  const auto blocks =
      part_sizes((left + block - 1) / block, balanced_shares(bandwidths_of(members)).fractions,
                 (least_part + block - 1) / block);
  for (size_t i = 0; i < blocks.size(); ++i) {
    group.members[i].part = std::min(blocks[i] * block, left);
    left -= group.members[i].part;
  }
  return group;
}

double slowest_link(const Match& match) {
  double slowest = HUGE_VAL;
  for (const auto& member : match.members) {
    const double bandwidth = gathered_from(member.gathered).bandwidth;
    if (bandwidth > 0) slowest = std::min(slowest, bandwidth);
  }
  return slowest;
}

}  // namespace troika::swarm
