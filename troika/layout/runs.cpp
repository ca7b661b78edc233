#include "troika/layout/runs.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace troika::layout {

namespace {

// Returns the row-major strides of the box's slice.
Dims strides_of(const Box& box) {
  Dims strides(box.size.size(), 1);
  for (size_t d = strides.size(); d-- > 1;) strides[d - 1] = strides[d] * box.size[d];
  return strides;
}

// Returns the offset in the box of the first element of `part`, which lies in the box.
int64_t place_in(const Box& box, const Dims& strides, const Box& part) {
  int64_t place = box.flat ? -box.flat->begin : 0;
  for (size_t d = 0; d < strides.size(); ++d) {
    place += (part.offset[d] - box.offset[d]) * strides[d];
  }
  return place;
}

}  // namespace

Runs::Runs(const Box& from, const Box& to) {
  for (const Box& part : intersection(from, to)) {
    if (part.count() > 0) parts_.push_back(part_of(part, from, to));
  }
  std::ranges::reverse(parts_);
}

Runs::Part Runs::part_of(const Box& part, const Box& from, const Box& to) {
  const Dims from_strides = strides_of(from), to_strides = strides_of(to);
  Part result{.dims = {},
              .run = {.from = place_in(from, from_strides, part),
                      .to = place_in(to, to_strides, part),
                      .count = 1}};
  if (part.flat) {  // then `from` and `to` have the same slice
    result.run.from += part.flat->begin;
    result.run.to += part.flat->begin;
    result.run.count = part.count();
    return result;
  }
  for (size_t d = part.size.size(); d-- > 0;) {
    if (part.size[d] == 1) continue;
    const bool follows = result.dims.empty() && from_strides[d] == result.run.count &&
                         to_strides[d] == result.run.count;
    if (follows) {
      result.run.count *= part.size[d];
    } else {
      result.dims.push_back(
          {.size = part.size[d], .from_stride = from_strides[d], .to_stride = to_strides[d]});
    }
  }
  std::ranges::reverse(result.dims);
  return result;
}

std::optional<Run> Runs::next() {
  if (parts_.empty()) return std::nullopt;
  Part& part = parts_.back();
  const Run result = part.run;
  for (size_t d = part.dims.size(); d-- > 0;) {
    Dim& dim = part.dims[d];
    part.run.from += dim.from_stride;
    part.run.to += dim.to_stride;
    if (++dim.at < dim.size) return result;
    part.run.from -= dim.size * dim.from_stride;
    part.run.to -= dim.size * dim.to_stride;
    dim.at = 0;
  }
  parts_.pop_back();
  return result;
}

}  // namespace troika::layout
