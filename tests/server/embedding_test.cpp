// The example of an embedding model.
#include <gmock/gmock.h>

#include "tests/server/child.h"
#include "troika/base/text.h"

namespace troika::server {
namespace {

// Returns the number of the line that begins with this word.
double line_number(const std::string& text, const std::string& word) {
  for (const auto& line : split(text, '\n')) {
    if (line.starts_with(word + " ")) return *parse_double(line.substr(word.size() + 1));
  }
  ADD_FAILURE() << "no line " << word << " in: " << text;
  return 0;
}

void expect_learnt(const std::string& text) {
  const double first = line_number(text, "first"), last = line_number(text, "last");
  EXPECT_LT(last, 0.93 * first) << text;
  EXPECT_GT(last, line_number(text, "truth")) << text;
}

TEST(ServerExamples, AnEmbeddingModelLearns) {
  Child alone(TROIKA_EMBEDDING, {}, {"--steps=300"});
  ASSERT_EQ(alone.end(), 0);
  expect_learnt(alone.text());
  // Each range keeps the frequent ids, which are most of the samples.
  Processes processes(TROIKA_EMBEDDING, 2, 2, {"--steps=300", "--rows=400"});
  for (const char* name : {"worker0", "worker1", "server0", "server1", "scheduler0"}) {
    EXPECT_EQ(processes[name].end(), 0) << name;
  }
  expect_learnt(processes["worker0"].text());
  Child wrong(TROIKA_EMBEDDING, {}, {"--steps=1"});
  EXPECT_EQ(wrong.end(), 2);
}

}  // namespace
}  // namespace troika::server
