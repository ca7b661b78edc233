// The table of equivalences: every model, optimizer, number of ranks and training feature against
// one process on the joined batch.
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "tests/parallel/course.h"
#include "troika/comm/local/local.h"

namespace troika::parallel {
namespace {

struct Case {
  Lesson lesson;
  int ranks;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.lesson.model << "_" << c.lesson.feature << "_" << c.lesson.optimizer << "_" << c.ranks;
}

std::vector<Case> table() {
  std::vector<Case> cases;
  for (const char* model : {"mlp", "resnet20", "gpt"}) {
    std::vector<std::string> features = {"plain", "accumulation", "unused", "uneven"};
    if (model == std::string("resnet20")) features.emplace_back("sync_batch_norm");
    if (model == std::string("gpt")) features.emplace_back("tied");
    for (const auto& feature : features) {
      for (const char* optimizer : {"sgd", "adamw"}) {
        for (const int ranks : {1, 2, 3, 4, 7}) {
          // A rank takes a tenth of a second, so each optimizer is tested with only some numbers of
          // ranks.
          const bool is_odd = ranks % 2 == 1;
          if (model == std::string("resnet20") && is_odd != (optimizer == std::string("sgd")))
            continue;
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

INSTANTIATE_TEST_SUITE_P(Local, Equivalence, testing::ValuesIn(table()),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace troika::parallel
