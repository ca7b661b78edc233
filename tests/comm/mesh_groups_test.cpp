#include "troika/comm/world/mesh_groups.h"

#include <gmock/gmock.h>

#include <atomic>
#include <barrier>
#include <functional>
#include <thread>

#include "tests/support/errors.h"
#include "troika/base/temporary_folder.h"
#include "troika/comm/diagnostics/flight_report.h"
#include "troika/comm/local/local.h"
#include "troika/compat/torch.h"

namespace troika::comm {
namespace {

using layout::Axis;
using layout::Mesh;
using testing::AnyOf;
using testing::HasSubstr;

// The numbers in the world of the ranks of a group, in their order.
std::vector<int64_t> members(const Group& group, int world_rank) {
  const auto all = at::empty({group.size()}, at::kLong);
  group.all_gather(all, at::full({1}, int64_t{world_rank}, at::kLong));
  return {all.data_ptr<int64_t>(), all.data_ptr<int64_t>() + all.numel()};
}

TEST(MeshGroups, WarnOfATensorAxisBetweenMachines) {
  const auto warning_for = [](const std::string& mesh) {
    testing::internal::CaptureStderr();
    local::run_ranks(local::make(4, {0, 0, 1, 1}), [&](const Group& world) {
      const MeshGroups groups(world, Mesh::parse(mesh));
    });
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(warning_for("data=2 tensor=2"), testing::IsEmpty());
  EXPECT_THAT(warning_for("tensor=2 data=2"),
              HasSubstr("ranks 0, 2 of a tensor axis are on several machines"));
}

TEST(MeshGroups, AreTheRanksAlongEachAxis) {
  for (const std::string text :
       {"data=6", "pipeline=2 data=3", "pipeline=2 data=2 tensor=2", "tensor=2 data=1 context=2",
        "data=2 context=2 tensor=2", "context=2"}) {
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
      const auto replicas = mesh.group(world.rank(), {Axis::data, Axis::context});
      EXPECT_EQ(members(groups.replicas(), world.rank()),
                std::vector<int64_t>(replicas.begin(), replicas.end()))
          << text << ", replicas of rank " << world.rank();
      groups.assume_links(groups.links());
    });
  }
}

TEST(MeshGroups, GradientsAndAttentionHaveGroupsOfTheirOwn) {
  for (const std::string text : {"context=2", "tensor=2 data=1 context=2"}) {
    const auto mesh = Mesh::parse(text);
    local::run(mesh.ranks(), [&](const Group& world) {
      const MeshGroups groups(world, mesh);
      const auto before = groups.replicas().counters().messages;
      groups.along(Axis::context).all_reduce(at::ones({3}), ReduceOp::sum);
      EXPECT_EQ(groups.replicas().counters().messages, before) << text;
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

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// In the world and in groups split from it before and after.
TEST(MeshGroups, ErrorsNameRanksByCoordinates) {
  std::atomic<int> told = 0;
  std::barrier made(4);  // a failure reaches ranks that still make their groups
  local::run(4, [&](const Group& world) {
    const auto before = *world.split(0);
    const MeshGroups groups(world, Mesh::parse("data=2 tensor=2"));
    made.arrive_and_wait();
    const auto& group = world.rank() < 2 ? groups.along(Axis::tensor) : before;
    if (world.rank() < 2) {
      // Ranks 0 and 1 call different things among them.
      const auto error = error_of([&] {
        if (world.rank() == 1) group.barrier();
        group.all_reduce(at::ones({2}));
      });
      EXPECT_THAT(error, HasSubstr("rank 0 = data 0, tensor 0: all_reduce #0"));
      EXPECT_THAT(error, HasSubstr("rank 1 = data 0, tensor 1: barrier #0"));
      ++told;
      return;
    }
    const auto error = error_of([&] { group.barrier(); });
    EXPECT_THAT(error, AnyOf(HasSubstr("rank 0 = data 0, tensor 0 "),
                             HasSubstr("rank 1 = data 0, tensor 1 ")));
  });
  EXPECT_EQ(told, 2);
}

TEST(MeshGroups, OfOneAxisLeaveNamesAsTheyAre) {
  local::run(2, [](const Group& world) {
    const MeshGroups several(world, Mesh::parse("data=1 tensor=2"));
    const MeshGroups one(world, Mesh::parse("data=2"));
    const auto error = error_of([&] {
      if (world.rank() == 1) world.barrier();
      world.all_reduce(at::ones({2}));
    });
    EXPECT_THAT(error, HasSubstr("rank 0: all_reduce #"));
    EXPECT_THAT(error, HasSubstr("rank 1: barrier #"));
  });
}

TEST(MeshGroups, AnAbsentRankIsNamedByItsCoordinates) {
  std::atomic<int> named = 0;
  const auto body = [&](const Group& world) {
    const MeshGroups groups(world, Mesh::parse("data=2 tensor=2"));
    world.barrier();
    if (world.rank() != 2) {
      while (named < 1) std::this_thread::yield();
      return;
    }
    const auto error = error_of([&] { groups.along(Axis::tensor).barrier(); });
    EXPECT_THAT(error, HasSubstr("timed out on rank 2 = data 1, tensor 0 after 1000 ms; got "
                                 "rank 3 = data 1, tensor 1 has not called it"));
    ++named;
  };
  EXPECT_NO_THROW(local::run(4, body, {.timeout = Milliseconds(1000)}));
}

// The group is one along an axis; records give its ranks their numbers in the world.
TEST(MeshGroups, FlightRecordsNameRanksByCoordinates) {
  const TemporaryFolder folder;
  std::barrier made(4);  // a failure reaches ranks that still make their groups
  const auto body = [&](const Group& world) {
    const MeshGroups groups(world, Mesh::parse("pipeline=2 tensor=2"));
    made.arrive_and_wait();
    const auto& tensor = groups.along(Axis::tensor);
    if (world.rank() < 2) return;
    EXPECT_THROW(tensor.all_reduce(at::zeros({world.rank()})), Error);
  };
  EXPECT_NO_THROW(local::run(4, body, {.flight_record = folder.path()}));
  const auto report = flight_report(folder.path());
  EXPECT_THAT(report, HasSubstr("Group group2-of-2 (2 ranks, local) made different calls as #0.\n"
                                "Rank 2 = pipeline 1, tensor 0 called all_reduce"));
  EXPECT_THAT(report, HasSubstr("3 = pipeline 1, tensor 1  all_reduce #0"));
  EXPECT_THAT(report, testing::Not(HasSubstr("Not used")));
}

// A resumed run chooses the same algorithms as before, along every axis.
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
