#include "troika/layout/box.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <span>

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/layout/errors/refuse.h"

namespace troika::layout {

namespace {

int64_t product(std::span<const int64_t> dims) {
  return std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
}

[[noreturn]] void refuse_text(std::string_view text) {
  refuse("a box", std::string(text),
         "NAME(SHAPE)[RANGES] as weight(8,6)[0:4,2:6], {RANGE} after it");
}

Range parse_range(std::string_view text, std::string_view whole) {
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos) refuse_text(whole);
  const auto begin = parse_int(text.substr(0, colon)), end = parse_int(text.substr(colon + 1));
  if (!begin || !end || *begin < 0 || *end < 0) refuse_text(whole);
  return {*begin, *end};
}

// Removes a suffix in these brackets from `text`, and returns its content.
std::optional<std::string_view> cut_off(std::string_view& text, char open, char close) {
  if (!text.ends_with(close)) return std::nullopt;
  const size_t begin = text.rfind(open);
  if (begin == std::string_view::npos) return std::nullopt;
  const auto inside = text.substr(begin + 1, text.size() - begin - 2);
  text = text.substr(0, begin);
  return inside;
}

std::vector<std::string> items(std::string_view list) {
  return list.empty() ? std::vector<std::string>{} : split(list, ',');
}

// Appends boxes without a flat range for the elements `range` of a slice in row-major order, from
// dimension `dim` on: a part of the first row, whole rows, and a part of the last row.
void unflatten(Box slice, Range range, size_t dim, std::vector<Box>& result) {
  if (range.begin >= range.end) return;
  if (dim == slice.size.size()) {  // one element
    result.push_back(std::move(slice));
    return;
  }
  const int64_t row = product(std::span(slice.size).subspan(dim + 1));
  const auto rows = [&](int64_t begin, int64_t end) {
    Box part = slice;
    part.offset[dim] += begin;
    part.size[dim] = end - begin;
    return part;
  };
  const int64_t first = range.begin / row, last = (range.end - 1) / row;
  const bool cuts_first = range.begin % row != 0, cuts_last = range.end % row != 0;
  if (first == last && (cuts_first || cuts_last)) {
    unflatten(rows(first, first + 1), {range.begin - first * row, range.end - first * row}, dim + 1,
              result);
    return;
  }
  if (cuts_first) unflatten(rows(first, first + 1), {range.begin % row, row}, dim + 1, result);
  const int64_t begin = first + (cuts_first ? 1 : 0), end = last + (cuts_last ? 0 : 1);
  if (begin < end) result.push_back(rows(begin, end));
  if (cuts_last) unflatten(rows(last, last + 1), {0, range.end % row}, dim + 1, result);
}

std::vector<Box> slices(Box box) {
  if (!box.flat) return {std::move(box)};
  const Range range = *box.flat;
  box.flat.reset();
  std::vector<Box> result;
  unflatten(std::move(box), range, 0, result);
  return result;
}

std::optional<Box> common(const Box& one, const Box& other) {
  Box result = one;
  for (size_t d = 0; d < one.shape.size(); ++d) {
    result.offset[d] = std::max(one.offset[d], other.offset[d]);
    result.size[d] =
        std::min(one.offset[d] + one.size[d], other.offset[d] + other.size[d]) - result.offset[d];
    if (result.size[d] <= 0) return std::nullopt;
  }
  return result;
}

}  // namespace

Box Box::whole(std::string name, Dims shape) {
  Dims offset(shape.size(), 0);
  auto size = shape;
  return {std::move(name), std::move(shape), std::move(offset), std::move(size)};
}

Box Box::range(std::string name, Dims shape, Range range) {
  auto result = whole(std::move(name), std::move(shape));
  result.flat = range;
  return result;
}

Box Box::parse(std::string_view text) {
  Box box;
  auto rest = text;
  if (const auto flat = cut_off(rest, '{', '}')) box.flat = parse_range(*flat, text);
  const auto ranges = cut_off(rest, '[', ']');
  const auto shape = ranges ? cut_off(rest, '(', ')') : std::nullopt;
  if (!shape || rest.empty()) refuse_text(text);
  box.name = rest;
  for (const auto& item : items(*shape)) {
    const auto size = parse_int(item);
    if (!size) refuse_text(text);
    box.shape.push_back(*size);
  }
  for (const auto& item : items(*ranges)) {
    const auto [begin, end] = parse_range(item, text);
    box.offset.push_back(begin);
    box.size.push_back(end - begin);
  }
  box.verify();
  return box;
}

std::string Box::text() const {
  std::vector<std::string> ranges;
  for (size_t d = 0; d < offset.size(); ++d) {
    ranges.push_back(fmt::format("{}:{}", offset[d], offset[d] + size[d]));
  }
  auto result = fmt::format("{}({})[{}]", name, fmt::join(shape, ","), fmt::join(ranges, ","));
  if (flat) result += fmt::format("{{{}:{}}}", flat->begin, flat->end);
  return result;
}

int64_t Box::count() const {
  return flat ? flat->end - flat->begin : product(size);
}

void Box::verify() const {
  int64_t elements = 1;
  for (const int64_t dim : shape) {
    if (dim < 0 || __builtin_mul_overflow(elements, std::max<int64_t>(1, dim), &elements)) {
      refuse("shape of " + name, fmt::format("{}", fmt::join(shape, ",")),
             "sizes >= 0 with a product below 2^63");
    }
  }
  if (offset.size() != shape.size() || size.size() != shape.size()) {
    refuse("box of " + name, fmt::format("{} and {} dims", offset.size(), size.size()),
           fmt::format("{}, those of the shape", shape.size()));
  }
  for (size_t d = 0; d < shape.size(); ++d) {
    // Written as a difference, since a sum could overflow.
    if (offset[d] < 0 || size[d] < 0 || offset[d] > shape[d] - size[d]) {
      refuse(fmt::format("box of {}, dim {}", name, d),
             fmt::format("offset {} and size {}", offset[d], size[d]),
             fmt::format("a range within 0:{}", shape[d]));
    }
  }
  if (flat && (flat->begin < 0 || flat->begin > flat->end || flat->end > product(size))) {
    refuse("flat range in a box of " + name, fmt::format("{}:{}", flat->begin, flat->end),
           fmt::format("a range within 0:{}", product(size)));
  }
}

std::vector<Box> intersection(const Box& one, const Box& other) {
  if (one.name != other.name || one.shape != other.shape) return {};
  if ((one.flat || other.flat) && one.offset == other.offset && one.size == other.size) {
    const Range all{0, product(one.size)};
    const Range a = one.flat.value_or(all), b = other.flat.value_or(all);
    Box result = one;
    result.flat = Range{std::max(a.begin, b.begin), std::min(a.end, b.end)};
    if (result.flat->begin >= result.flat->end) return {};
    return {std::move(result)};
  }
  std::vector<Box> result;
  for (const auto& a : slices(one)) {
    if (a.count() == 0) continue;
    for (const auto& b : slices(other)) {
      if (auto both = common(a, b)) result.push_back(std::move(*both));
    }
  }
  return result;
}

}  // namespace troika::layout
