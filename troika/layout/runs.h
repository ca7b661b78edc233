// Where the elements that two boxes share lie in memory of each.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "troika/layout/box.h"

namespace troika::layout {

// `count` elements that follow each other in both boxes. Places are counted in elements from the
// box's first one, where a box's elements lie in row-major order: of its slice or, with a flat
// range, those of that range.
struct Run {
  int64_t from = 0;
  int64_t to = 0;
  int64_t count = 0;

  bool operator==(const Run&) const = default;
};

// The runs of all elements that `from` and `to` share, ascending by Run::from. Runs are made one by
// one: a column of a tensor of a billion rows takes no memory.
class Runs {
 public:
  // Boxes of different names or shapes share nothing.
  Runs(const Box& from, const Box& to);

  // Nothing after the last one.
  std::optional<Run> next();

 private:
  struct Dim {
    int64_t size = 1;
    int64_t from_stride = 0;
    int64_t to_stride = 0;
    int64_t at = 0;
  };
  // Runs of one length: the first, and the dims along which it is repeated, outermost first.
  struct Part {
    std::vector<Dim> dims;
    Run run;
  };

  static Part part_of(const Box& part, const Box& from, const Box& to);

  std::vector<Part> parts_;  // those to come, the next one last
};

}  // namespace troika::layout
