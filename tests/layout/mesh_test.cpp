#include "troika/layout/mesh.h"

#include <gmock/gmock.h>

#include "tests/support/errors.h"

namespace troika::layout {
namespace {

using testing::ElementsAre;

TEST(Mesh, NumbersRanksFromTheInnermostAxisOn) {
  const auto mesh = Mesh::parse("pipeline=2 data=3 tensor=2");
  EXPECT_EQ(mesh.ranks(), 12);
  EXPECT_EQ(mesh.describe(0), "rank 0 = pipeline 0, data 0, tensor 0");
  EXPECT_EQ(mesh.describe(1), "rank 1 = pipeline 0, data 0, tensor 1");
  EXPECT_EQ(mesh.describe(9), "rank 9 = pipeline 1, data 1, tensor 1");
  EXPECT_EQ(Mesh::parse("tensor=2 data=3 pipeline=2").describe(1),
            "rank 1 = tensor 0, data 0, pipeline 1");
  EXPECT_EQ(Mesh().describe(0), "rank 0");
}

TEST(Mesh, GroupsAreTheRanksAlongAxes) {
  const auto mesh = Mesh::parse("pipeline=2 data=3 tensor=2");
  EXPECT_THAT(mesh.group(9, {Axis::tensor}), ElementsAre(8, 9));
  EXPECT_THAT(mesh.group(9, {Axis::data}), ElementsAre(7, 9, 11));
  EXPECT_THAT(mesh.group(9, {Axis::pipeline}), ElementsAre(3, 9));
  EXPECT_THAT(mesh.group(9, {Axis::tensor, Axis::data}), ElementsAre(6, 7, 8, 9, 10, 11));
  EXPECT_THAT(mesh.group(9, {}), ElementsAre(9));
  EXPECT_THAT(mesh.group(9, {Axis::expert}), ElementsAre(9)) << "an axis it lacks";
}

// Every mesh with its ranks, coordinates and groups by their definitions.
TEST(Mesh, CoordinatesGroupsAndTextAreConsistent) {
  for (const std::string text :
       {"", "data=1", "data=7", "tensor=2 pipeline=3",
        "expert=2 context=2 data=3 tensor=2 pipeline=2", "pipeline=3 data=2-1-1",
        "pipeline=2 data=15-1", "pipeline=3 data=1-4-2 tensor=2",
        "pipeline=2 tensor=3 data=1-2 context=2"}) {
    const auto mesh = Mesh::parse(text);
    EXPECT_EQ(mesh.text(), text);
    EXPECT_EQ(Mesh::parse(mesh.text()), mesh);
    int expected = 0;
    for (int stage = 0; stage < mesh.size(Axis::pipeline); ++stage) {
      expected += mesh.replicas(stage) * mesh.size(Axis::tensor) * mesh.size(Axis::context) *
                  mesh.size(Axis::expert);
    }
    ASSERT_EQ(mesh.ranks(), expected) << text;
    for (int rank = 0; rank < mesh.ranks(); ++rank) {
      const auto at = mesh.coordinates(rank);
      ASSERT_EQ(mesh.rank(at), rank) << text;
      ASSERT_LT(at[Axis::data], mesh.replicas(at[Axis::pipeline])) << text;
      const auto replicas = mesh.group(rank, {Axis::data});
      ASSERT_EQ(replicas.size(), static_cast<size_t>(mesh.replicas(at[Axis::pipeline]))) << text;
      for (size_t i = 0; i < replicas.size(); ++i) {
        auto there = at;
        there[Axis::data] = static_cast<int>(i);
        ASSERT_EQ(mesh.coordinates(replicas[i]), there) << text;
      }
    }
  }
}

TEST(Mesh, StagesMayHaveDifferentReplicas) {
  const auto mesh = Mesh::parse("pipeline=3 data=2-1-1");
  EXPECT_TRUE(mesh.has_uneven_stages());
  EXPECT_EQ(mesh.replicas(0), 2);
  EXPECT_EQ(mesh.replicas(2), 1);
  EXPECT_EQ(mesh.describe(1), "rank 1 = pipeline 0, data 1");
  EXPECT_EQ(mesh.describe(3), "rank 3 = pipeline 2, data 0");
  EXPECT_THAT(mesh.group(1, {Axis::pipeline, Axis::data}), ElementsAre(0, 1, 2, 3));
  EXPECT_ERROR(mesh.group(1, {Axis::pipeline}), ErrorKind::usage,
               "[layout] no group along the pipeline axis alone; got pipeline=3 data=2-1-1, "
               "expected stages with equal numbers of replicas, or the data axis with it");
  EXPECT_ERROR(mesh.size(Axis::data), ErrorKind::usage,
               "[layout] the data axis has no size; got pipeline=3 data=2-1-1, expected stages "
               "with equal numbers of replicas");
  // Equal numbers are the plain form.
  EXPECT_EQ(Mesh::parse("pipeline=2 data=3-3"), Mesh::parse("pipeline=2 data=3"));
}

TEST(Mesh, OneAxisTakesTheRestOfTheWorld) {
  EXPECT_EQ(Mesh::parse("pipeline=2 data=-1 tensor=2", 12).text(), "pipeline=2 data=3 tensor=2");
  EXPECT_EQ(Mesh::parse("pipeline=2 data=2-1 tensor=-1", 12).text(),
            "pipeline=2 data=2-1 tensor=4");
  EXPECT_EQ(Mesh::parse("data=-1", 5), Mesh(Axis::data, 5));
  EXPECT_EQ(Mesh::parse("pipeline=2 data=-1").text(), "pipeline=2 data=1") << "of an unknown world";
}

TEST(Mesh, RefusesWhatIsNone) {
  const auto refused = [](const std::string& text, int world = 0) {
    try {
      Mesh::parse(text, world);
    } catch (const Error& problem) {
      return std::string(problem.what());
    }
    return text + " was taken";
  };
  EXPECT_EQ(refused("data=2 tenser=2"),
            "[layout] mesh `data=2 tenser=2`; got axis tenser, expected one of pipeline, data, "
            "tensor, context, expert (did you mean tensor?)");
  EXPECT_EQ(refused("data=2 data=3"),
            "[layout] mesh `data=2 data=3`; got axis data twice, expected each axis once");
  EXPECT_EQ(refused("data=0"),
            "[layout] mesh `data=0`; got size 0, expected an integer >= 1, or "
            "-1 for the rest of the world");
  EXPECT_THAT(refused("data"), testing::HasSubstr("got size , expected an integer"));
  EXPECT_THAT(refused("data=2x"), testing::HasSubstr("got size 2x,"));
  EXPECT_EQ(refused("pipeline=2 data=-1", 5),
            "[layout] mesh `pipeline=2 data=-1`; got 5 ranks for data = -1, expected a multiple of "
            "2, the ranks of the other axes");
  EXPECT_EQ(refused("data=-1 tensor=-1", 4),
            "[layout] mesh `data=-1 tensor=-1`; got -1 for two axes, expected for one at most");
  for (const std::string text : {"data=2-1", "pipeline=3 data=2-1", "tensor=2 pipeline=2 data=2-1",
                                 "pipeline=-1 data=2-1"}) {
    EXPECT_THAT(refused(text, 6), testing::HasSubstr("one number for each stage of the pipeline"))
        << text;
  }
  EXPECT_THAT(refused("pipeline=2 data=2--1"), testing::HasSubstr("got size ,"));
  EXPECT_EQ(
      refused("data=70000 tensor=70000"),
      "[layout] mesh `data=70000 tensor=70000`; got 4900000000 ranks, expected at most 2^31 - "
      "1");
  EXPECT_THROW(Mesh(Axis::data, 2).coordinates(2), CheckError);
  EXPECT_THROW(Mesh(Axis::data, 2).rank({{0, 2}}), CheckError);
}

TEST(Mesh, RanksOfTwoMeshesAreComparedByTheirPlaces) {
  const auto four = Mesh(Axis::data, 4), grid = Mesh::parse("data=2 tensor=2");
  EXPECT_EQ(four.find(grid.coordinates(2)), 1);
  EXPECT_EQ(four.find(grid.coordinates(1)), std::nullopt) << "it has no tensor axis";
  EXPECT_EQ(grid.find(four.coordinates(3)), std::nullopt);
  EXPECT_TRUE(four.has_places_of(Mesh::parse("data=4")));
  EXPECT_FALSE(four.has_places_of(grid));
  EXPECT_FALSE(four.has_places_of(Mesh(Axis::data, 2)));
  EXPECT_FALSE(grid.has_places_of(Mesh::parse("tensor=2 data=2")));
  EXPECT_TRUE(Mesh().has_places_of(Mesh(Axis::data, 1)));
}

}  // namespace
}  // namespace troika::layout
