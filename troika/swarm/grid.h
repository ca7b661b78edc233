// Groups of a grid, in which all peers average in as many rounds as the grid has dimensions
// (Ryabinin et al., Moshpit SGD, NeurIPS 2021).
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace troika::swarm {

// A peer's place in a grid of side^dimensions places. In round r, those peers form a group whose
// places differ only along dimension r mod dimensions; then each takes another place along it. If
// all places are taken by equally many peers, and groups have all their members, all peers have the
// average of all after as many rounds as dimensions.
class GridPlace {
 public:
  // `place`: 0 to side^dimensions - 1. Throws Error(swarm, usage) for others, and for a side or
  // dimensions of 0.
  GridPlace(size_t side, size_t dimensions, size_t place);

  // The key of this round's group.
  std::string key() const;
  // Ends the round; `index`, below `side`, is the peer's new place along its axis. Members of one
  // group spread evenly to all places.
  void move(size_t index);

 private:
  size_t axis() const { return round_ % coordinates_.size(); }

  size_t side_;
  std::vector<size_t> coordinates_;
  size_t round_ = 0;
};

}  // namespace troika::swarm
