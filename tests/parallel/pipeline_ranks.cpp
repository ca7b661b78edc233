// A rank of pipelines whose ranks are processes:
//   pipeline_ranks BACKEND
#include <gmock/gmock.h>

#include <iostream>

#include "tests/parallel/pipeline_course.h"
#include "troika/comm/end_with.h"
#include "troika/comm/world/world.h"

int main(int argc, char** argv) try {
  using troika::parallel::expect_oracle;
  if (argc != 2) throw std::runtime_error("usage: pipeline_ranks BACKEND");
  testing::InitGoogleTest(&argc, argv);
  const auto world = troika::comm::world({.backend = argv[1]});
  const auto pipeline = "pipeline=" + std::to_string(world.size());
  expect_oracle(world, pipeline, "skips", 9, {.schedule = "1f1b", .micro_batches = 8});
  expect_oracle(world, pipeline, "skips", 9, {.schedule = "zb-v", .micro_batches = 8});
  expect_oracle(world, pipeline, "gpt", 9, {.schedule = "gpipe", .micro_batches = 5});
  expect_oracle(world, "pipeline=2 data=-1", "gpt", 8,
                {.schedule = "interleaved", .micro_batches = 4});
  expect_oracle(world, "pipeline=2 data=1-3", "skips", 7,
                {.schedule = "zb-h1", .micro_batches = 7});
  return testing::Test::HasFailure() ? 1 : 0;
} catch (const std::exception& error) {
  return troika::comm::end_with(error);
}
