#include "troika/swarm/grid.h"

#include <fmt/format.h>

#include "troika/base/error.h"

namespace troika::swarm {

GridPlace::GridPlace(size_t side, size_t dimensions, size_t place) : side_(side) {
  size_t rest = place;
  for (size_t i = 0; i < dimensions && side > 0; ++i) {
    coordinates_.push_back(rest % side);
    rest /= side;
  }
  if (coordinates_.empty() || rest > 0) {
    throw Error("swarm", ErrorKind::usage,
                {.what = "a place in a grid",
                 .got = fmt::format("place {} of {}^{}", place, side, dimensions),
                 .expected = "a place of a grid of at least one"});
  }
}

std::string GridPlace::key() const {
  auto key = fmt::format("axis {}", axis());
  for (size_t i = 0; i < coordinates_.size(); ++i) {
    key += i == axis() ? " *" : fmt::format(" {}", coordinates_[i]);
  }
  return key;
}

void GridPlace::move(size_t index) {
  TROIKA_CHECK(index < side_, "the index of a member is below the side of the grid");
  coordinates_[axis()] = index;
  ++round_;
}

}  // namespace troika::swarm
