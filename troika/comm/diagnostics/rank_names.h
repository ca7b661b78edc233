// Names of the ranks of a world.
#pragma once

#include <mutex>
#include <optional>
#include <string>

#include "troika/layout/mesh.h"

namespace troika::comm {

// All functions may be called from any thread. No other lock is taken while they hold theirs.
class RankNames {
 public:
  // Adds coordinates to the names, from now on, if the mesh has several axes.
  void place(const layout::Mesh& mesh);
  // Returns "rank 5", or "rank 5 = pipeline 1, data 0, tensor 1".
  std::string name(int rank) const;
  // Returns "pipeline 1, data 0, tensor 1"; empty if ranks have no coordinates.
  std::string place_of(int rank) const;

 private:
  mutable std::mutex mutex_;
  std::optional<layout::Mesh> mesh_;
};

}  // namespace troika::comm
