#include "troika/comm/mesh_groups.h"

#include <gtest/gtest.h>

#include "tests/support/errors.h"
#include "troika/comm/local/local.h"
#include "troika/compat/torch.h"

namespace troika::comm {
namespace {

using layout::Axis;
using layout::Mesh;

// The numbers in the world of the ranks of a group, in their order.
std::vector<int64_t> members(const Group& group, int world_rank) {
  const auto all = at::empty({group.size()}, at::kLong);
  group.all_gather(all, at::full({1}, int64_t{world_rank}, at::kLong));
  return {all.data_ptr<int64_t>(), all.data_ptr<int64_t>() + all.numel()};
}

TEST(MeshGroups, AreTheRanksAlongEachAxis) {
  for (const std::string text :
       {"data=6", "pipeline=2 data=3", "pipeline=2 data=2 tensor=2", "tensor=2 data=1 context=2"}) {
    const auto mesh = Mesh::parse(text);
    local::run(mesh.ranks(), [&](const Group& world) {
      const MeshGroups groups(world, mesh);
      for (const auto axis :
           {Axis::pipeline, Axis::data, Axis::tensor, Axis::context, Axis::expert}) {
        const auto expected = mesh.group(world.rank(), {axis});
        EXPECT_EQ(members(groups.along(axis), world.rank()),
                  std::vector<int64_t>(expected.begin(), expected.end()))
            << text << ", " << layout::name(axis) << " of rank " << world.rank();
      }
    });
  }
}

TEST(MeshGroups, StagesMayHaveDifferentNumbersOfReplicas) {
  const auto mesh = Mesh::parse("pipeline=3 data=2-1-1");
  local::run(4, [&](const Group& world) {
    const MeshGroups groups(world, mesh);
    EXPECT_EQ(groups.data().size(), world.rank() < 2 ? 2 : 1);
    EXPECT_ERROR(
        groups.along(Axis::pipeline), ErrorKind::usage,
        "[comm] no group along the pipeline axis alone; got pipeline=3 data=2-1-1, expected stages "
        "with equal numbers of replicas");
  });
}

TEST(MeshGroups, NameRanksByCoordinates) {
  local::run(4, [](const Group& world) {
    EXPECT_EQ(MeshGroups(world, Mesh::parse("data=2 tensor=2")).describe(3),
              "rank 3 = data 1, tensor 1");
    EXPECT_EQ(MeshGroups(world, Mesh::parse("data=4")).describe(3), "rank 3");
    EXPECT_ERROR(MeshGroups(world, Mesh::parse("data=3")), ErrorKind::usage,
                 "[comm] a mesh for another world; got 3 ranks: `data=3`, expected 4");
  });
}

// A run that goes on chooses algorithms as the one before did, along every axis.
TEST(MeshGroups, TakeOverMeasuredLinks) {
  local::run(4, [](const Group& world) {
    const auto mesh = Mesh::parse("data=2 tensor=2");
    const auto links = MeshGroups(world, mesh).links();
    EXPECT_TRUE(links[0].gt(0).any().item<bool>());
    EXPECT_TRUE(links[2].gt(0).any().item<bool>()) << "data";
    EXPECT_FALSE(links[1].any().item<bool>()) << "the mesh has no pipeline axis";
    const MeshGroups later(world, mesh);
    later.assume_links(links * 2);
    EXPECT_TRUE(later.links().equal(links * 2));
  });
}

}  // namespace
}  // namespace troika::comm
