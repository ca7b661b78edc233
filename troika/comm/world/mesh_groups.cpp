#include "troika/comm/world/mesh_groups.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/comm/local/local.h"
#include "troika/compat/torch.h"

namespace troika::comm {

using layout::Axis;

namespace {

// A tensor axis sums activations several times in each layer.
void warn_of_tensor_axes_between_nodes(const Group& world, const layout::Mesh& mesh) {
  const auto& nodes = world.nodes();
  for (int rank = 0; rank < world.size(); ++rank) {
    const auto ranks = mesh.group(rank, {Axis::tensor});
    const auto is_elsewhere = [&](int other) {
      return nodes[static_cast<size_t>(other)] != nodes[static_cast<size_t>(rank)];
    };
    if (std::ranges::none_of(ranks, is_elsewhere)) continue;
    log::warn(
        "[comm] ranks {} of a tensor axis are on several machines, so every layer waits for the "
        "network; mesh.axes with tensor last, and a size that divides the ranks of each machine, "
        "keep the axis inside machines",
        fmt::join(ranks, ", "));
    return;
  }
}

}  // namespace

MeshGroups::MeshGroups(Group world, layout::Mesh mesh)
    : world_(std::move(world)), mesh_(std::move(mesh)) {
  if (mesh_.ranks() != world_.size()) {
    throw Error("comm", ErrorKind::usage,
                {.what = "a mesh for another world",
                 .got = fmt::format("{} ranks: `{}`", mesh_.ranks(), mesh_.text()),
                 .expected = std::to_string(world_.size())});
  }
  world_.place_ranks(mesh_);
  if (world_.rank() == 0) warn_of_tensor_axes_between_nodes(world_, mesh_);
  groups_.resize(layout::kAxes);
  for (size_t i = 0; i < layout::kAxes; ++i) {
    const auto axis = static_cast<Axis>(i);
    if (axis == Axis::pipeline && mesh_.has_uneven_stages()) continue;
    groups_[i] = make({axis});
  }
  if (mesh_.size(Axis::context) == 1) return;
  // Attention's blocking collectives must not queue behind buckets of gradients.
  if (mesh_.size(Axis::data) == 1) replicas_ = along(Axis::context).split(0);
  if (!replicas_) replicas_ = make({Axis::data, Axis::context});
}

Group MeshGroups::make(const std::vector<Axis>& axes) const {
  // The lowest rank of a group is its color. All ranks call split, because the number of groups may
  // differ by stage.
  const auto ranks = mesh_.group(world_.rank(), axes);
  const int largest = mesh_.has_uneven_stages() ? 0 : static_cast<int>(ranks.size());
  if (largest == world_.size()) return world_;
  if (largest == 1) return local::alone();
  return *world_.split(ranks.front());
}

const Group& MeshGroups::along(Axis axis) const {
  const auto& group = groups_[static_cast<size_t>(axis)];
  if (group) return *group;
  throw Error("comm", ErrorKind::usage,
              {.what = "no group along the pipeline axis alone",
               .got = mesh_.text(),
               .expected = "stages with equal numbers of replicas"});
}

// Row 0 is the world's; row 1 + i is that of axis i.
template <typename Visit>
void MeshGroups::for_each_row(const Visit& visit) const {
  visit(0, world_);
  for (size_t i = 0; i < groups_.size(); ++i) {
    if (!groups_[i] || groups_[i]->size() == 1 || groups_[i]->size() == world_.size()) continue;
    visit(static_cast<int64_t>(i) + 1, *groups_[i]);
  }
  if (!replicas_) return;
  const bool is_the_world = mesh_.size(Axis::data) > 1 && replicas_->size() == world_.size();
  if (!is_the_world) visit(static_cast<int64_t>(groups_.size()) + 1, *replicas_);
}

at::Tensor MeshGroups::links() const {
  const int64_t rows = static_cast<int64_t>(groups_.size()) + (replicas_ ? 2 : 1);
  const auto result = at::zeros({rows, 5}, at::kDouble);
  for_each_row([&](int64_t row, const Group& group) { result[row].copy_(group.links()); });
  return result;
}

void MeshGroups::assume_links(const at::Tensor& links) const {
  for_each_row([&](int64_t row, const Group& group) { group.assume_links(links[row]); });
}

std::string MeshGroups::describe(int rank) const {
  return mesh_.axes().size() > 1 ? mesh_.describe(rank) : fmt::format("rank {}", rank);
}

}  // namespace troika::comm
