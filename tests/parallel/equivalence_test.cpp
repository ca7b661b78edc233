// The table of equivalences: every model, optimizer, number of ranks and way of training against
// one process on the joined batch.
#include <gtest/gtest.h>

#include <vector>

#include "tests/parallel/course.h"
#include "troika/comm/local/local.h"

namespace troika::parallel {
namespace {

struct Case {
  Lesson lesson;
  int ranks;
};

std::vector<Case> table() {
  std::vector<Case> cases;
  for (const char* model : {"mlp", "resnet20", "gpt"}) {
    std::vector<std::string> features = {"plain", "accumulation", "unused", "uneven"};
    if (model == std::string("resnet20")) features.emplace_back("sync_batch_norm");
    if (model == std::string("gpt")) features.emplace_back("tied");
    for (const auto& feature : features) {
      for (const char* optimizer : {"sgd", "adamw"}) {
        for (const int ranks : {1, 2, 3, 4, 7}) {
          cases.push_back({{.model = model, .optimizer = optimizer, .feature = feature}, ranks});
        }
      }
    }
  }
  return cases;
}

class Equivalence : public testing::TestWithParam<Case> {};

TEST_P(Equivalence, OneProcessIsTheOracle) {
  const auto& [lesson, ranks] = GetParam();
  const Course oracle = train_alone(ranks, lesson);
  comm::local::run(ranks, [&, &lesson = lesson](comm::Group group) {
    expect_equal(train(group, lesson), oracle, 1e-10);
  });
}

std::string name_of(const testing::TestParamInfo<Case>& info) {
  const Lesson& lesson = info.param.lesson;
  return lesson.model + "_" + lesson.feature + "_" + lesson.optimizer + "_" +
         std::to_string(info.param.ranks);
}

INSTANTIATE_TEST_SUITE_P(Local, Equivalence, testing::ValuesIn(table()), name_of);

}  // namespace
}  // namespace troika::parallel
