// Boxes: descriptions of parts of named tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troika::layout {

using Dims = std::vector<int64_t>;

// [begin, end)
struct Range {
  int64_t begin = 0;
  int64_t end = 0;

  bool operator==(const Range&) const = default;
};

// The elements offset[d] <= index[d] < offset[d] + size[d] of a tensor of this shape. With `flat`,
// only this range of these elements in row-major order, as ZeRO shards tensors. Text form:
// `weight(8,6)[0:4,2:6]`, followed by `{0:10}` for a flat range.
struct Box {
  std::string name;
  Dims shape, offset, size;
  std::optional<Range> flat = {};

  static Box whole(std::string name, Dims shape);
  // Returns a box for the elements `range` of the whole tensor in row-major order.
  static Box range(std::string name, Dims shape, Range range);
  // Throws Error(usage) for a text that is not in this form, and the errors of verify().
  static Box parse(std::string_view text);
  std::string text() const;

  // Returns the number of elements in the box.
  int64_t count() const;
  // Throws Error(usage) unless offset and size have as many dimensions as the shape and lie within
  // it, and `flat` lies within the box.
  void verify() const;

  bool operator==(const Box&) const = default;
};

// Returns the common elements of both boxes, as disjoint boxes in the tensor's row-major order;
// empty if names or shapes differ. Returns at most one box if neither has a flat range, or if both
// have the same offset and size.
std::vector<Box> intersection(const Box& one, const Box& other);

// The reason why boxes do not hold each element of their tensor exactly once.
struct CoverFault {
  // The indices in the list of two boxes that share elements.
  std::optional<std::pair<size_t, size_t>> shared = {};
  // If no two boxes share elements: the number of elements in none of the boxes.
  int64_t left_out = 0;
};

// Returns nothing if the boxes hold each element of their tensor exactly once. They must describe
// one tensor and have passed verify(). For n boxes takes the time of sorting if they are flat
// ranges of one slice or split one dimension, and O(n^2) at most.
std::optional<CoverFault> cover_fault(const std::vector<Box>& boxes);

}  // namespace troika::layout
