// The main() of programs whose ranks a launcher starts, over shared memory.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "troika/comm/world/world.h"

namespace troika::train {

// Runs `body` with the arguments after RANKS, which must be the number of ranks. `body` returns
// false for wrong arguments. Returns the program's exit code, which is not 0 if an expectation
// failed.
inline int main_of_ranks(int argc, char** argv, const char* usage,
                         const std::function<bool(const comm::Group& group,
                                                  const std::vector<std::string>& more)>& body) {
  testing::InitGoogleTest(&argc, argv);
  try {
    const auto group = comm::world({.backend = "shm"});
    const std::vector<std::string> given(argv + 1, argv + argc);
    const bool fits = !given.empty() && given[0] == std::to_string(group.size());
    if (!fits || !body(group, {given.begin() + 1, given.end()})) {
      std::fprintf(stderr, "usage: %s, on %d ranks\n", usage, group.size());
      return 1;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed();
}

}  // namespace troika::train
