// The answers of ranks that were asked.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace troika::cluster {

struct Answers {
  // By rank; nothing for one that was lost, left or is silent.
  std::vector<std::optional<std::string>> text;
  // By rank: who is silent where there is no answer. It is that rank itself, or another one that
  // would have passed the question or the answer on: then nothing is known of that rank.
  std::vector<int> silent;
};

}  // namespace troika::cluster
