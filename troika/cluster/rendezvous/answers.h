// The ranks' answers to a question.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace troika::cluster {

struct Answers {
  // By rank; none for a rank that was lost, has left or is silent.
  std::vector<std::optional<std::string>> text;
  // By rank: the silent rank that explains a missing answer. This is the rank itself, or a rank
  // that should have forwarded the question or the answer; in that case the state of the rank is
  // unknown.
  std::vector<int> silent;
};

}  // namespace troika::cluster
