#include "troika/layout/box.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "tests/layout/random_boxes.h"
#include "tests/support/errors.h"

namespace troika::layout {
namespace {

std::set<int64_t> elements(const Box& box) {
  const auto ordered = ordered_elements(box);
  return {ordered.begin(), ordered.end()};
}

TEST(Box, IntersectionsHaveTheElementsOfBoth) {
  std::mt19937 random(3);
  int shared = 0;
  for (const Dims& shape : {Dims{}, Dims{7}, Dims{4, 5}, Dims{3, 4, 5}, Dims{2, 3, 2, 3}}) {
    for (int trial = 0; trial < 500; ++trial) {
      const auto one = random_box(random, shape), other = random_box(random, shape);
      const auto in_one = elements(one), in_other = elements(other);
      std::set<int64_t> expected, found;
      int64_t last = -1;
      std::ranges::set_intersection(in_one, in_other, std::inserter(expected, expected.end()));
      for (const auto& box : intersection(one, other)) {
        box.verify();
        for (const int64_t element : elements(box)) {
          ASSERT_TRUE(found.insert(element).second) << one.text() << " and " << other.text();
        }
        if (box.count() > 0) {
          ASSERT_GT(ordered_elements(box).front(), last) << one.text() << " and " << other.text();
          last = ordered_elements(box).back();
        }
      }
      ASSERT_EQ(found, expected) << one.text() << " and " << other.text();
      ASSERT_EQ(Box::parse(one.text()), one);
      shared += expected.empty() ? 0 : 1;
    }
  }
  EXPECT_GT(shared, 250);
}

TEST(Box, TextForms) {
  EXPECT_EQ(Box::whole("a.b", {8, 6}).text(), "a.b(8,6)[0:8,0:6]");
  EXPECT_EQ(Box::whole("scale", {}).text(), "scale()[]");
  const auto part = Box::parse("a(x)(8,6)[2:4,1:6]{3:9}");
  EXPECT_EQ(part.name, "a(x)");
  EXPECT_EQ(part.size, (Dims{2, 5}));
  EXPECT_EQ(part.count(), 6);
  for (const std::string text : {"a", "a(8)", "a(8)[0]", "(8)[0:8]", "a(8)[0:x]", "a8)[0:8]",
                                 "a(8,)[0:8]", "a(8)[0:8]{1}"}) {
    EXPECT_ERROR(Box::parse(text), ErrorKind::usage,
                 "[layout] a box; got " + text +
                     ", expected NAME(SHAPE)[RANGES] as weight(8,6)[0:4,2:6], {RANGE} after it");
  }
}

TEST(Box, LiesInItsTensor) {
  EXPECT_ERROR(Box::parse("w(8,6)[0:8,2:7]"), ErrorKind::usage,
               "[layout] box of w, dim 1; got offset 2 and size 5, expected a range within 0:6");
  EXPECT_ERROR(Box::parse("w(8)[4:2]"), ErrorKind::usage,
               "[layout] box of w, dim 0; got offset 4 and size -2, expected a range within 0:8");
  EXPECT_ERROR(Box::parse("w(4294967296,4294967296)[0:1,0:1]"), ErrorKind::usage,
               "[layout] shape of w; got 4294967296,4294967296, expected sizes >= 0 with a product "
               "below 2^63");
  EXPECT_ERROR(Box::parse("w(8,6)[0:8]"), ErrorKind::usage,
               "[layout] box of w; got 1 and 1 dims, expected 2, those of the shape");
  EXPECT_ERROR(Box::parse("w(8,6)[0:2,0:6]{0:13}"), ErrorKind::usage,
               "[layout] flat range in a box of w; got 0:13, expected a range within 0:12");
}

std::vector<Box> boxes(const std::vector<std::string>& texts) {
  std::vector<Box> result;
  for (const auto& text : texts) result.push_back(Box::parse(text));
  return result;
}

TEST(Box, CoversATensorExactlyOnce) {
  EXPECT_FALSE(cover_fault(boxes({"w(4,6)[0:4,0:3]", "w(4,6)[0:2,3:6]", "w(4,6)[2:4,3:6]"})));
  // A column for each rank of a tensor axis, cut by ZeRO among two ranks.
  EXPECT_FALSE(cover_fault(boxes({"w(4,6)[0:4,0:3]{0:5}", "w(4,6)[0:4,0:3]{5:12}",
                                  "w(4,6)[0:4,3:6]{5:12}", "w(4,6)[0:4,3:6]{0:5}"})));
  const auto gap = cover_fault(boxes({"w(4,6)[0:4,0:3]", "w(4,6)[0:2,3:6]"}));
  ASSERT_TRUE(gap && !gap->shared);
  EXPECT_EQ(gap->left_out, 6);
  // As many elements as there are, but one twice and one not at all.
  const auto overlap =
      cover_fault(boxes({"w(4,6)[0:4,3:6]", "w(4,6)[0:4,0:3]{0:6}", "w(4,6)[0:4,0:3]{5:11}"}));
  ASSERT_TRUE(overlap && overlap->shared);
  EXPECT_EQ(*overlap->shared, (std::pair<size_t, size_t>{1, 2}));
}

// Each pair of boxes that share elements, one by one.
bool covers_once(const std::vector<Box>& boxes) {
  std::vector<int64_t> held;
  for (const auto& box : boxes) {
    for (const int64_t element : ordered_elements(box)) held.push_back(element);
  }
  std::ranges::sort(held);
  std::vector<int64_t> expected(held.size());
  std::iota(expected.begin(), expected.end(), 0);
  int64_t all = 1;
  for (const int64_t size : boxes[0].shape) all *= size;
  return held == expected && static_cast<int64_t>(held.size()) == all;
}

// Cuts the box at random, across a dimension or into flat ranges.
void cut(std::mt19937& random, const Box& box, int depth, std::vector<Box>& result) {
  const auto number = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  if (depth == 0 || box.count() < 2) {
    result.push_back(box);
    return;
  }
  const auto d = static_cast<size_t>(number(0, static_cast<int64_t>(box.shape.size())));
  if (d == box.shape.size()) {
    const int64_t at = number(1, box.count() - 1);
    for (const auto& range : {Range{0, at}, Range{at, box.count()}}) {
      result.push_back(box);
      result.back().flat = range;
    }
    return;
  }
  Box first = box, second = box;
  first.size[d] = number(0, box.size[d]);
  second.offset[d] += first.size[d];
  second.size[d] -= first.size[d];
  cut(random, first, depth - 1, result);
  cut(random, second, depth - 1, result);
}

TEST(Box, AnyCutCoversAndAnyChangeOfItDoesNot) {
  std::mt19937 random(9);
  int changed = 0;
  for (const Dims& shape : {Dims{7}, Dims{4, 5}, Dims{3, 4, 5}}) {
    for (int trial = 0; trial < 500; ++trial) {
      std::vector<Box> pieces;
      cut(random, Box::whole("w", shape), 4, pieces);
      std::ranges::shuffle(pieces, random);
      ASSERT_FALSE(cover_fault(pieces));
      pieces[random() % pieces.size()] = random_box(random, shape);
      const auto fault = cover_fault(pieces);
      ASSERT_EQ(!fault, covers_once(pieces));
      changed += fault ? 1 : 0;
      if (!fault || !fault->shared) continue;
      const auto [one, other] = *fault->shared;
      ASSERT_LT(one, other);
      ASSERT_FALSE(intersection(pieces[one], pieces[other]).empty());
    }
  }
  EXPECT_GT(changed, 500);
}

}  // namespace
}  // namespace troika::layout
