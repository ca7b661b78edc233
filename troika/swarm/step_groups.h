// The groups in which the peers of a swarm average one step. Internal to the room.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "troika/swarm/averaging.h"
#include "troika/swarm/gathered.h"
#include "troika/swarm/grid.h"
#include "troika/swarm/matchmaking.h"

namespace troika::swarm {

// The side of the grid for so many peers: the least power of two with which groups have about
// `group_size` peers, or a smaller one, so that at least three peers of a row come to each column.
// 1: there is one group. A group size of 0 has no limit.
size_t grid_side(size_t peers, size_t group_size);

// Either one group of all peers; or, on a grid, first rows, and then columns, to which the members
// of a row spread (Moshpit SGD with two dimensions). A row is a part of the peers, by their names
// and the state that they have. In a column, one member of each row contributes the row's average,
// with the row's weight. So without faults all peers come to the average over all of them.
class StepGroups {
 public:
  // `version` names the state of which the step is made.
  explicit StepGroups(const std::string& version = {}, size_t side = 1,
                      const std::string& own_name = {});

  // The key of the group that this peer is to find now.
  std::string key() const;
  // Whether rows are to come before the average of all.
  bool is_row() const { return side_ > 1 && !is_column(); }
  bool is_column() const { return part_.members > 0; }
  // Whether a peer may be in the group.
  bool may_have(const std::string& peer) const;

  // This peer's part of its row, which it tells its column.
  const RowPart& part() const { return part_; }
  // The row has been averaged, with this result for this peer, which `contributes` to the column.
  void end_row(const Match& row, const AveragingResult& result, bool contributes);
  // Whether a column has all peers that their rows sent to it.
  bool is_complete(const std::vector<GroupMember>& column) const;

 private:
  size_t row_of(const std::string& peer) const;

  std::string version_;
  size_t side_;
  uint64_t seed_;  // of the rows
  std::string own_name_;
  std::optional<GridPlace> place_;
  RowPart part_;
};

// The members of a column that contribute, one of each row.
struct ColumnSources {
  std::set<std::string> names = {};
  std::string rows = {};  // names their rows
  double weight = 0;      // of all rows
};
// The same for all members of the column.
ColumnSources sources_of(const Match& column);
// Names what a column has averaged: the same in all columns that had all of the same rows.
std::string name_of_column(const Match& column, const AveragingResult& result);

}  // namespace troika::swarm
