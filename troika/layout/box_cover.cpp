// Checks whether boxes hold each element of their tensor exactly once.
#include <algorithm>
#include <functional>
#include <numeric>
#include <set>

#include "troika/base/error.h"
#include "troika/layout/box.h"

namespace troika::layout {

namespace {

// Boxes of one slice: the range [begin, end) in the list of sorted indices.
struct SameSlice {
  size_t begin = 0;
  size_t end = 0;
};

using Shared = std::optional<std::pair<size_t, size_t>>;

Shared pair_of(size_t one, size_t other) {
  return std::pair(std::min(one, other), std::max(one, other));
}

// Returns the indices of non-empty boxes, sorted so that boxes of one slice are adjacent, in the
// order of their ranges.
std::vector<size_t> sorted_places(const std::vector<Box>& boxes) {
  std::vector<size_t> places;
  for (size_t i = 0; i < boxes.size(); ++i) {
    if (boxes[i].count() > 0) places.push_back(i);
  }
  std::ranges::sort(places, [&](size_t i, size_t j) {
    const Box &a = boxes[i], &b = boxes[j];
    if (a.offset != b.offset) return a.offset < b.offset;
    if (a.size != b.size) return a.size < b.size;
    return (a.flat ? a.flat->begin : 0) < (b.flat ? b.flat->begin : 0);
  });
  return places;
}

bool is_of_slice(const Box& box, const Box& other) {
  return box.offset == other.offset && box.size == other.size;
}

bool have_common_elements(const Box& one, const Box& other) {
  for (size_t d = 0; d < one.shape.size(); ++d) {
    if (one.offset[d] + one.size[d] <= other.offset[d] ||
        other.offset[d] + other.size[d] <= one.offset[d]) {
      return false;
    }
  }
  return true;
}

// Returns the dimension with the most different slice offsets: few slices span one position there.
size_t most_cut_dim(const std::vector<Box>& boxes, const std::vector<size_t>& places,
                    const std::vector<SameSlice>& slices) {
  size_t result = 0, most = 0;
  for (size_t d = 0; d < boxes[0].shape.size(); ++d) {
    std::set<int64_t> offsets;
    for (const auto& slice : slices) offsets.insert(boxes[places[slice.begin]].offset[d]);
    if (offsets.size() > most) result = d;
    most = std::max(most, offsets.size());
  }
  return result;
}

class Cover {
 public:
  explicit Cover(const std::vector<Box>& boxes) : boxes_(boxes), places_(sorted_places(boxes)) {}

  Shared shared() {
    for (size_t i = 0; i < places_.size(); ++i) {
      if (i == 0 || !is_of_slice(box(i - 1), box(i))) {
        slices_.push_back({i, i + 1});
        continue;
      }
      if (!box(i - 1).flat || box(i - 1).flat->end > begin(i)) {
        return pair_of(places_[i - 1], places_[i]);
      }
      slices_.back().end = i + 1;
    }
    return slices_.size() > 1 ? shared_between_slices() : std::nullopt;
  }

 private:
  const Box& box(size_t i) const { return boxes_[places_[i]]; }
  int64_t begin(size_t i) const { return box(i).flat ? box(i).flat->begin : 0; }

  // Sweeps along one dimension and compares the slices that span each position.
  Shared shared_between_slices() const {
    const size_t dim = most_cut_dim(boxes_, places_, slices_);
    auto order = slices_;
    std::ranges::sort(order, {}, [&](const SameSlice& s) { return box(s.begin).offset[dim]; });
    std::vector<SameSlice> open;
    for (const auto& slice : order) {
      const int64_t at = box(slice.begin).offset[dim];
      std::erase_if(open, [&](const SameSlice& before) {
        const Box& other = box(before.begin);
        return other.offset[dim] + other.size[dim] <= at;
      });
      for (const auto& before : open) {
        if (const auto found = shared(before, slice)) return found;
      }
      open.push_back(slice);
    }
    return std::nullopt;
  }

  Shared shared(const SameSlice& one, const SameSlice& other) const {
    if (!have_common_elements(box(one.begin), box(other.begin))) return std::nullopt;
    for (size_t i = one.begin; i < one.end; ++i) {
      for (size_t j = other.begin; j < other.end; ++j) {
        if (!intersection(box(i), box(j)).empty()) return pair_of(places_[i], places_[j]);
      }
    }
    return std::nullopt;
  }

  const std::vector<Box>& boxes_;
  const std::vector<size_t> places_;
  std::vector<SameSlice> slices_;
};

int64_t elements(const Dims& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

}  // namespace

std::optional<CoverFault> cover_fault(const std::vector<Box>& boxes) {
  TROIKA_CHECK(!boxes.empty(), "boxes of a tensor");
  if (const auto shared = Cover(boxes).shared()) return CoverFault{.shared = shared};
  int64_t left_out = elements(boxes[0].shape);
  for (const Box& box : boxes) left_out -= box.count();
  if (left_out == 0) return std::nullopt;
  return CoverFault{.left_out = left_out};
}

}  // namespace troika::layout
