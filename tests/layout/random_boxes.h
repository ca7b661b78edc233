// Random boxes, and lists of their elements.
#pragma once

#include <functional>
#include <numeric>
#include <random>
#include <vector>

#include "troika/layout/box.h"

namespace troika::layout {

// Returns the row-major positions in the tensor of the box's elements, in the order of the box.
inline std::vector<int64_t> ordered_elements(const Box& box) {
  std::vector<int64_t> result;
  const auto count =
      std::accumulate(box.size.begin(), box.size.end(), int64_t{1}, std::multiplies<>());
  const Range flat = box.flat.value_or(Range{0, count});
  for (int64_t i = flat.begin; i < flat.end; ++i) {
    int64_t rest = i, number = 0, stride = 1;
    for (size_t d = box.shape.size(); d-- > 0;) {
      number += (box.offset[d] + rest % box.size[d]) * stride;
      rest /= box.size[d];
      stride *= box.shape[d];
    }
    result.push_back(number);
  }
  return result;
}

inline Box random_box(std::mt19937& random, const Dims& shape) {
  const auto number = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  Box box{"w", shape, {}, {}};
  for (const int64_t size : shape) {
    box.offset.push_back(number(0, size - 1));
    box.size.push_back(number(0, size - box.offset.back()));
  }
  if (number(0, 1) == 0) {
    const int64_t count = box.count(), begin = number(0, count);
    box.flat = Range{begin, number(begin, count)};
  }
  return box;
}

}  // namespace troika::layout
