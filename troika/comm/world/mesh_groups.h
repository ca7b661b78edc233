// One communicator group for each axis of a mesh.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "troika/comm/group.h"
#include "troika/layout/mesh.h"

namespace troika::comm {

// The groups of this rank in a mesh: the world, and for each axis the ranks whose coordinates
// differ from this rank's on that axis only. Copies are handles to the same groups.
class MeshGroups {
 public:
  // Splits `world` for each axis, except an axis of one rank and an axis that spans the world.
  // Collective, blocking. Throws Error(usage) on all ranks unless the mesh has as many ranks as the
  // world.
  MeshGroups(Group world, layout::Mesh mesh);

  const layout::Mesh& mesh() const { return mesh_; }
  const Group& world() const { return world_; }
  // Returns the group along an axis: a group of this rank alone if the axis has one rank or is not
  // in the mesh. Throws Error(usage) for the pipeline axis of a mesh whose stages have different
  // numbers of replicas.
  const Group& along(layout::Axis axis) const;
  const Group& data() const { return along(layout::Axis::data); }
  // Returns the group along the data and the context axis together: the ranks that hold the same
  // part of the model, and average its gradients.
  const Group& replicas() const { return replicas_ ? *replicas_ : data(); }

  // Returns Group::links() of the world and of each axis that has a group of its own: float64 [1 +
  // axes, 5], 0 for the other axes; with a context axis, a last row is that of replicas().
  // Collective, blocking; no other call may be in flight. The same holds for assume_links().
  at::Tensor links() const;
  void assume_links(const at::Tensor& links) const;

  // Returns "rank 5 = pipeline 1, data 0, tensor 1"; "rank 5" in a mesh of one axis.
  std::string describe(int rank) const;

 private:
  Group make(const std::vector<layout::Axis>& axes) const;
  template <typename Visit>
  void for_each_row(const Visit& visit) const;

  Group world_;
  layout::Mesh mesh_;
  std::vector<std::optional<Group>> groups_;  // by axis
  std::optional<Group> replicas_;             // if there is a context axis
};

}  // namespace troika::comm
