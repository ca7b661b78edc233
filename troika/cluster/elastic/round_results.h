// How the launches of one round of an elastic run end it.
#pragma once

#include <cstddef>
#include <set>
#include <vector>

#include "troika/cluster/elastic/agent_wire.h"

namespace troika::cluster {

class RoundResults {
 public:
  RoundResults() = default;
  explicit RoundResults(const std::vector<int>& launches)
      : size_(launches.size()), open_(launches.begin(), launches.end()) {}

  // The number of launches that began the round.
  size_t size() const { return size_; }
  // The launches that have not ended the round yet.
  const std::set<int>& open() const { return open_; }
  bool has_ends() const { return !ends_.empty(); }
  // Records how a launch ended. Returns false if the launch is not in the round, or has ended
  // already.
  bool end(int launch, const RoundEnd& how);
  // Records that a launch was lost. Returns false as end() does.
  bool lose(int launch) { return open_.erase(launch) != 0; }

  // Returns the first end of that kind, null if there is none.
  const RoundEnd* first(RoundEnd::Kind kind) const;
  // Returns the failure to report: the first that does not only follow another rank's; null if no
  // rank failed.
  const RoundEnd* failure() const;
  bool all_finished() const;

 private:
  size_t size_ = 0;
  std::set<int> open_;
  std::vector<RoundEnd> ends_;
};

}  // namespace troika::cluster
