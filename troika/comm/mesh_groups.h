// One group for each axis of a mesh.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "troika/comm/group.h"
#include "troika/layout/mesh.h"

namespace troika::comm {

// The groups of this rank in a mesh: that of the world, and along each axis that of the ranks whose
// coordinates differ from its own on this axis alone. Copies are handles to the same groups.
class MeshGroups {
 public:
  // Splits `world` for each axis that neither has one rank nor spans the world: collective, blocks.
  // Throws Error(usage) on all ranks unless the mesh has as many ranks as the world.
  MeshGroups(Group world, layout::Mesh mesh);

  const layout::Mesh& mesh() const { return mesh_; }
  const Group& world() const { return world_; }
  // A group of this rank alone for an axis of one rank, or that the mesh lacks. Throws Error(usage)
  // for the pipeline axis of a mesh whose stages have different numbers of replicas.
  const Group& along(layout::Axis axis) const;
  const Group& data() const { return along(layout::Axis::data); }

  // Group::links() of the world and of each axis that has a group of its own: float64 [1 + axes,
  // 5], 0 for the others. Collective, blocking, with no call under way; as is assume_links().
  at::Tensor links() const;
  void assume_links(const at::Tensor& links) const;

  // "rank 5 = pipeline 1, data 0, tensor 1"; "rank 5" in a mesh of one axis.
  std::string describe(int rank) const;

 private:
  Group make(layout::Axis axis) const;
  template <typename Visit>
  void for_each_row(const Visit& visit) const;

  Group world_;
  layout::Mesh mesh_;
  std::vector<std::optional<Group>> groups_;  // by axis
};

}  // namespace troika::comm
