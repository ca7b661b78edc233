// Boxes: parts of named tensors.
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

// The elements offset[d] <= index[d] < offset[d] + size[d] of a tensor of this shape and, with
// `flat`, of these the range in row-major order, as ZeRO cuts tensors. Text form:
// `weight(8,6)[0:4,2:6]`, with `{0:10}` behind it for a flat range.
struct Box {
  std::string name;
  Dims shape, offset, size;
  std::optional<Range> flat = {};

  static Box whole(std::string name, Dims shape);
  // The elements `range` of the whole tensor in row-major order.
  static Box range(std::string name, Dims shape, Range range);
  // Throws Error(usage) for a text of another form, and what verify() does.
  static Box parse(std::string_view text);
  std::string text() const;

  // Elements in it.
  int64_t count() const;
  // Throws Error(usage) unless offset and size have the dims of the shape, and lie within it, and
  // `flat` within the box.
  void verify() const;

  bool operator==(const Box&) const = default;
};

// The elements that both have, as boxes that share none, ascending in the tensor's row-major order;
// none where the names or shapes differ. It is one box where neither has a flat range, and where
// both are of the same slice.
std::vector<Box> intersection(const Box& one, const Box& other);

// The reason why boxes do not hold each element of their tensor exactly once.
struct CoverFault {
  // Places in the list of two boxes that share elements.
  std::optional<std::pair<size_t, size_t>> shared = {};
  // Where no two boxes share any: elements that none holds.
  int64_t left_out = 0;
};

// Nothing where the boxes, which are of one tensor and passed verify(), hold each of its elements
// once. The time for n boxes is that of sorting them where they are flat ranges of one slice or cut
// one dimension, and at most proportional to n^2.
std::optional<CoverFault> cover_fault(const std::vector<Box>& boxes);

// Throws Error(usage) where verify() does, for boxes of several tensors, and for a cover_fault():
// names two boxes that share elements, or says how many elements none holds.
void require_exact_cover(const std::vector<Box>& boxes);

}  // namespace troika::layout
