// The ranks of a world that have left normally.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "troika/comm/diagnostics/recorder.h"

namespace troika::comm {

// Not thread-safe.
class DepartedRanks {
 public:
  // `farewell` is that rank's GroupRegister::farewell(). Ignores a text that it cannot parse.
  void add(int rank, const std::string& farewell);
  bool contains(int rank) const;
  // Returns the ranks in the order in which they left.
  const std::vector<int>& all() const { return ranks_; }
  // Returns the last status of a rank in a group, if the rank has reported it.
  std::optional<RankStatus> last_of(int rank, uint32_t group) const;

 private:
  std::vector<int> ranks_;
  std::map<int, std::map<uint32_t, RankStatus>> last_;  // by rank and group
};

}  // namespace troika::comm
