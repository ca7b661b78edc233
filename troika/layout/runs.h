// The memory locations of the elements that two boxes share, in each of the boxes.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "troika/layout/box.h"

namespace troika::layout {

// `count` elements that are consecutive in both boxes, at offset `from` in one and `to` in the
// other. Offsets are counted in elements from the start of the box's memory, which holds its slice
// or its flat range in row-major order.
struct Run {
  int64_t from = 0;
  int64_t to = 0;
  int64_t count = 0;

  bool operator==(const Run&) const = default;
};

// Enumerates the runs of all elements that `from` and `to` share, ascending by Run::from. Runs are
// computed one by one: even a column of a tensor with a billion rows takes no memory.
class Runs {
 public:
  // Boxes of different names or shapes share nothing.
  Runs(const Box& from, const Box& to);

  // Returns the next run; nothing after the last one.
  std::optional<Run> next();

 private:
  struct Dim {
    int64_t size = 1;
    int64_t from_stride = 0;
    int64_t to_stride = 0;
    int64_t at = 0;
  };
  // Runs of one length: the first one, and the dimensions along which it repeats, outermost first.
  struct Part {
    std::vector<Dim> dims;
    Run run;
  };

  static Part part_of(const Box& part, const Box& from, const Box& to);

  std::vector<Part> parts_;  // remaining ones, the next one last
};

}  // namespace troika::layout
