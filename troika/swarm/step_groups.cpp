#include "troika/swarm/step_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "troika/base/random.h"
#include "troika/swarm/identity.h"

namespace troika::swarm {

namespace {

uint64_t hash_of(const std::string& text) {
  return std::stoull(digest_of(text).substr(0, 16), nullptr, 16);
}

}  // namespace

size_t grid_side(size_t peers, size_t group_size) {
  size_t side = 1;
  if (group_size == 0) return side;
  while (side * group_size < peers && 3 * (2 * side) * (2 * side) <= peers) side *= 2;
  return side;
}

StepGroups::StepGroups(const std::string& version, size_t side, const std::string& own_name)
    : version_(version), side_(side), seed_(side > 1 ? hash_of(version) : 0), own_name_(own_name) {
  if (side_ > 1) place_.emplace(side_, 2, side_ * row_of(own_name));
}

std::string StepGroups::key() const {
  return place_ ? fmt::format("{} side {} {}", version_, side_, place_->key()) : version_;
}

size_t StepGroups::row_of(const std::string& peer) const {
  uint64_t hash = seed_;
  for (const char letter : peer) hash = hash * 1'099'511'628'211 + static_cast<uint8_t>(letter);
  return static_cast<size_t>(mix(hash) % side_);
}

bool StepGroups::may_have(const std::string& peer) const {
  return !is_row() || row_of(peer) == row_of(own_name_);
}

void StepGroups::end_row(const Match& row, const AveragingResult& result, bool contributes) {
  const auto own = std::ranges::find(row.members, own_name_, &GroupMember::name);
  const auto index = static_cast<size_t>(own - row.members.begin());
  const size_t column = index % side_;
  // A member with values of its own in some part would not contribute what the others of its row
  // do in other columns.
  const bool is_source = contributes && result.weight > 0 && result.is_complete();
  part_ = RowPart{.row = row_of(own_name_),
                  .average = is_source ? digest_of(std::to_string(row.id)).substr(0, 32) : "",
                  .weight = is_source ? result.weight : 0,
                  .members = (row.members.size() - column + side_ - 1) / side_};
  // Small rows come to different columns.
  place_->move((column + part_.row) % side_);
}

bool StepGroups::is_complete(const std::vector<GroupMember>& column) const {
  if (column.size() < side_) return false;
  struct Row {
    size_t present = 0, sent = 0;
  };
  std::map<size_t, Row> rows;
  for (const auto& member : column) {
    const auto part = gathered_from(member.gathered).row;
    auto& row = rows[part.row];
    ++row.present;
    row.sent = std::max(row.sent, part.members);
  }
  return rows.size() == side_ && std::ranges::all_of(rows, [](const auto& row) {
           return row.second.present >= row.second.sent;
         });
}

ColumnSources sources_of(const Match& column) {
  ColumnSources sources;
  // In the order of sums, so that equal sets of rows have equal weights.
  std::map<std::string, std::pair<std::string, double>> rows;
  for (const auto& member : column.members) {
    const auto part = gathered_from(member.gathered).row;
    if (!part.average.empty()) rows.try_emplace(part.average, member.name, part.weight);
  }
  for (const auto& [average, source] : rows) {
    sources.names.insert(source.first);
    sources.rows += average + ' ';
    sources.weight += source.second;
  }
  return sources;
}

std::string name_of_column(const Match& column, const AveragingResult& result) {
  const auto sources = sources_of(column);
  // Without a lost one, its sum of weights is that of all columns, to the bit.
  return result.weight == sources.weight ? sources.rows : std::to_string(column.id);
}

}  // namespace troika::swarm
