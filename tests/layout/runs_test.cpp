#include "troika/layout/runs.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <random>

#include "tests/layout/random_boxes.h"

namespace troika::layout {
namespace {

// Inside of a test, Run is one of GoogleTest's functions.
using RunList = std::vector<Run>;

RunList all(Runs runs) {
  RunList result;
  while (const auto run = runs.next()) result.push_back(*run);
  return result;
}

Box box(const std::string& text) {
  return Box::parse(text);
}

TEST(Runs, CopyTheElementsOfBoth) {
  std::mt19937 random(5);
  int64_t copied = 0;
  for (const Dims& shape : {Dims{}, Dims{7}, Dims{4, 5}, Dims{3, 4, 5}, Dims{2, 3, 2, 3}}) {
    for (int trial = 0; trial < 2000; ++trial) {
      const auto one = random_box(random, shape), other = random_box(random, shape);
      const auto in_one = ordered_elements(one), in_other = ordered_elements(other);
      std::vector<int64_t> result(in_other.size(), -1), expected(in_other.size(), -1);
      for (size_t i = 0; i < in_other.size(); ++i) {
        if (std::ranges::count(in_one, in_other[i]) > 0) expected[i] = in_other[i];
      }
      int64_t end = 0;
      for (const auto& run : all({one, other})) {
        ASSERT_GE(run.from, end) << one.text() << " and " << other.text();
        ASSERT_GT(run.count, 0);
        end = run.from + run.count;
        ASSERT_LE(end, one.count());
        ASSERT_LE(run.to + run.count, other.count());
        std::copy_n(in_one.begin() + run.from, run.count, result.begin() + run.to);
        copied += run.count;
      }
      ASSERT_EQ(result, expected) << one.text() << " and " << other.text();
    }
  }
  EXPECT_GT(copied, 1000);
}

TEST(Runs, AreAsLongAsMemoryOfBothAllows) {
  EXPECT_EQ(all({box("w(8,6)[0:8,0:6]"), box("w(8,6)[2:6,0:6]")}), (RunList{{12, 0, 24}}));
  EXPECT_EQ(all({box("w(8,6)[0:8,0:6]"), box("w(8,6)[2:4,0:3]")}),
            (RunList{{12, 0, 3}, {18, 3, 3}}));
  // A rank of ZeRO that takes its range of what another number of ranks has written.
  EXPECT_EQ(all({box("w(8,6)[0:8,0:6]{10:30}"), box("w(8,6)[0:8,0:6]{20:48}")}),
            (RunList{{10, 0, 10}}));
  EXPECT_EQ(all({box("w(8,6)[0:8,0:6]"), box("w(8,6)[0:8,0:6]{20:48}")}), (RunList{{20, 0, 28}}));
  EXPECT_EQ(all({box("w(8,6)[0:8,0:6]"), box("v(8,6)[0:8,0:6]")}), RunList{});
  EXPECT_EQ(all({Box::whole("s", {}), Box::whole("s", {})}), (RunList{{0, 0, 1}}));
}

}  // namespace
}  // namespace troika::layout
