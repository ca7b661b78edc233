#include "troika/comm/diagnostics/rank_names.h"

#include <fmt/format.h>

namespace troika::comm {

void RankNames::place(const layout::Mesh& mesh) {
  const std::lock_guard lock(mutex_);
  mesh_.reset();
  if (mesh.axes().size() > 1) mesh_ = mesh;
}

std::string RankNames::name(int rank) const {
  const std::lock_guard lock(mutex_);
  return mesh_ ? mesh_->describe(rank) : fmt::format("rank {}", rank);
}

std::string RankNames::place_of(int rank) const {
  const std::lock_guard lock(mutex_);
  return mesh_ ? mesh_->place(rank) : "";
}

}  // namespace troika::comm
