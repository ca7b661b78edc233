// Boxes: parts of named tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
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

// The elements that both have, as boxes that share none; none where the names or shapes differ. It
// is one box where neither has a flat range, or both have one within the same slice.
std::vector<Box> intersection(const Box& one, const Box& other);

// Throws Error(usage) unless the boxes, which are of one tensor, hold each of its elements once:
// names two that share elements, or says how many elements none holds.
void require_exact_cover(const std::vector<Box>& boxes);

}  // namespace troika::layout
