// ranks BACKEND: data parallelism on the ranks that a launcher started, against one process.
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/parallel/course.h"
#include "troika/comm/world/world.h"

int main(int argc, char** argv) {
  using namespace troika;
  testing::InitGoogleTest(&argc, argv);
  try {
    auto group = comm::world({.backend = argv[1]});
    if (group.size() == 1) {
      std::fprintf(stderr, "expected several ranks\n");
      return 1;
    }
    using parallel::Lesson;
    for (const char* model : {"mlp", "resnet20", "gpt"}) {
      for (const auto& [type, tolerance] : {std::pair(at::kDouble, 1e-10), {at::kFloat, 1e-5}}) {
        for (const char* feature : {"plain", "uneven"}) {
          const Lesson lesson{model, "sgd", feature, type};
          parallel::expect_equal(parallel::train(group, lesson),
                                 parallel::train_alone(group.size(), lesson), tolerance);
        }
      }
    }
    for (const int stage : {1, 2, 3}) {
      const Lesson lesson{.model = "gpt", .optimizer = "adamw", .feature = "plain", .stage = stage};
      parallel::expect_equal(parallel::train(group, lesson),
                             parallel::train_alone(group.size(), lesson), 1e-10);
    }
    const Lesson lesson{"resnet20", "sgd", "sync_batch_norm"};
    parallel::expect_equal(parallel::train(group, lesson),
                           parallel::train_alone(group.size(), lesson), 1e-10);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed();
}
