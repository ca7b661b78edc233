// ZeRO's stages, also in groups of ranks, against one process on the joined batch.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "tests/parallel/course.h"
#include "troika/comm/local/local.h"

namespace troika::parallel {
namespace {

using comm::Group;

struct ShardedCase {
  Lesson lesson;
  int ranks;
};

void PrintTo(const ShardedCase& c, std::ostream* out) {
  *out << "zero" << c.lesson.stage << "_" << c.lesson.model << "_" << c.lesson.feature << "_"
       << c.lesson.optimizer << "_" << c.ranks;
  if (c.lesson.group_size > 0) *out << "_by_" << c.lesson.group_size;
}

std::vector<ShardedCase> sharded_table() {
  std::vector<ShardedCase> cases;
  for (const int stage : {1, 2, 3}) {
    for (const char* model : {"mlp", "gpt"}) {
      for (const std::string feature : {"plain", "accumulation", "unused", "uneven", "clipping"}) {
        if (stage == 3 && (feature == "unused" || feature == "uneven")) continue;
        for (const int ranks : {1, 2, 3, 4, 7}) {
          const char* optimizer = ranks % 2 == 0 ? "sgd" : "adamw";
          cases.push_back(
              {{.model = model, .optimizer = optimizer, .feature = feature, .stage = stage},
               ranks});
        }
      }
    }
    for (const std::string optimizer : {"lars", "lamb", "adamw_8bit"}) {
      // A tensor of 7680 elements, more than are kept whole.
      const char* model = optimizer == "adamw_8bit" ? "mlp" : "gpt";
      for (const int ranks : {1, 2, 3, 4}) {
        cases.push_back(
            {{.model = model, .optimizer = optimizer, .feature = "clipping", .stage = stage},
             ranks});
      }
    }
  }
  for (const int stage : {1, 2, 3}) {
    for (const std::string feature : {"plain", "accumulation", "unused", "uneven", "clipping"}) {
      if (stage == 3 && (feature == "unused" || feature == "uneven")) continue;
      for (const auto& [ranks, size] : {std::pair(2, 1), {4, 2}, {6, 2}, {6, 3}}) {
        cases.push_back({{.model = "gpt",
                          .optimizer = size == 2 ? "adamw" : "lamb",
                          .feature = feature,
                          .stage = stage,
                          .group_size = size},
                         ranks});
      }
    }
  }
  return cases;
}

class ShardedEquivalence : public testing::TestWithParam<ShardedCase> {};

TEST_P(ShardedEquivalence, OneProcessIsTheOracle) {
  const auto& [lesson, ranks] = GetParam();
  const Course oracle = train_alone(ranks, lesson);
  comm::local::run(ranks, [&, &lesson = lesson](Group group) {
    expect_equal(train(group, lesson), oracle, 1e-10);
  });
}

INSTANTIATE_TEST_SUITE_P(Local, ShardedEquivalence, testing::ValuesIn(sharded_table()),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace troika::parallel
