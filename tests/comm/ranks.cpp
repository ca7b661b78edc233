// ranks BACKEND: the conformance suite on the ranks that a launcher started.
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/comm/conformance.h"
#include "troika/comm/world.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  try {
    auto group = troika::comm::world({.backend = argv[1]});
    if (group.size() == 1 || group.backend() != argv[1]) {
      std::fprintf(stderr, "expected several ranks on %s\n", argv[1]);
      return 1;
    }
    troika::comm::conform(group);
    if (group.rank() == 0) std::printf("%d ranks conform\n", group.size());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  // Expectations fail the process that made them.
  return testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed();
}
