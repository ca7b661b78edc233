#include "troika/optim/flat_parameters.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <set>

#include "troika/base/error.h"

namespace troika::optim {

namespace {

void require_usable(const Parameter& parameter, at::ScalarType type, c10::Device device) {
  const auto& tensor = parameter.tensor;
  const auto fail = [&](const std::string& got, const std::string& expected) {
    throw Error("optim", ErrorKind::usage,
                {.what = "cannot optimize " + parameter.name, .got = got, .expected = expected});
  };
  if (!tensor.defined()) fail("no tensor", "a tensor");
  if (tensor.layout() != at::kStrided) fail("a sparse tensor", "a dense one");
  if (tensor.device() != device) {
    fail(tensor.device().str(), device.str() + " as the parameters before it");
  }
  if (tensor.scalar_type() != at::kFloat && tensor.scalar_type() != at::kDouble) {
    fail(c10::toString(tensor.scalar_type()), "Float or Double");
  }
  if (tensor.scalar_type() != type) {
    fail(c10::toString(tensor.scalar_type()),
         std::string(c10::toString(type)) + " as the parameters before it");
  }
  if (!tensor.is_non_overlapping_and_dense()) {
    fail("elements with gaps or overlaps in memory", "a tensor that fills what it spans");
  }
}

void require_matching(const Parameter& parameter, const at::Tensor& gradient, c10::Device device) {
  const auto describe = [](const at::Tensor& tensor) {
    std::string text = c10::toString(tensor.scalar_type());
    for (const int64_t size : tensor.sizes()) text.append(" ").append(std::to_string(size));
    return tensor.device().str() + " " + text;
  };
  if (gradient.layout() != at::kStrided) {
    throw Error(
        "optim", ErrorKind::usage,
        {.what = "the gradient of " + parameter.name + " is sparse", .expected = "a dense one"});
  }
  if (gradient.scalar_type() != parameter.tensor.scalar_type() || gradient.device() != device ||
      gradient.sizes() != parameter.tensor.sizes()) {
    throw Error("optim", ErrorKind::usage,
                {.what = "the gradient of " + parameter.name + " does not fit it",
                 .got = describe(gradient),
                 .expected = describe(parameter.tensor)});
  }
}

}  // namespace

at::Tensor view_like(const at::Tensor& flat, int64_t offset, const at::Tensor& like) {
  if (!like.is_non_overlapping_and_dense()) {
    return flat.narrow(0, offset, like.numel()).view(like.sizes());
  }
  return flat.as_strided(like.sizes(), like.strides(), flat.storage_offset() + offset);
}

FlatParameters::FlatParameters(std::vector<Parameter> parameters) : list_(std::move(parameters)) {
  if (list_.empty()) {
    throw Error(
        "optim", ErrorKind::usage,
        {.what = "nothing to optimize", .got = "no parameters", .expected = "at least one"});
  }
  if (const auto& first = list_[0].tensor; first.defined()) {
    type_ = first.scalar_type();
    device_ = first.device();
  }
  std::set<std::string> names;
  std::map<const void*, std::string> places;
  for (const auto& parameter : list_) {
    require_usable(parameter, type_, device_);
    if (!names.insert(parameter.name).second) {
      throw Error("optim", ErrorKind::usage,
                  {.what = "two parameters have the same name", .got = parameter.name});
    }
    const auto& tensor = parameter.tensor;
    const auto [place, is_new] = places.emplace(tensor.data_ptr(), parameter.name);
    if (!is_new && tensor.numel() > 0) {
      throw Error("optim", ErrorKind::usage,
                  {.what = parameter.name + " and " + place->second + " are one tensor",
                   .hint = "give a tied parameter once"});
    }
    offsets_.push_back(offsets_.back() + tensor.numel());
  }
}

at::Tensor FlatParameters::view(const at::Tensor& flat, size_t index) const {
  return view_like(flat, offset(index), list_[index].tensor);
}

FlatParameters::Gradients FlatParameters::gradients() const {
  Gradients result;
  result.ranges.reserve(list_.size());
  for (size_t i = 0; i < list_.size(); ++i) {
    const auto& tensor = list_[i].tensor;
    // Avoids Tensor::grad(), which also checks whether the tensor is a leaf.
    const at::Tensor& own = tensor.unsafeGetTensorImpl()->grad();
    if (!own.defined() || tensor.numel() == 0) continue;
    require_matching(list_[i], own, device_);
    TROIKA_CHECK(tensor.numel() == offsets_[i + 1] - offsets_[i], list_[i].name + " was resized");
    const bool is_reordered = own.strides() != tensor.strides();
    if (is_reordered) result.reordered.push_back(at::empty_like(tensor).copy_(own));
    const at::Tensor& gradient = is_reordered ? result.reordered.back() : own;
    if (!device_.is_cpu()) result.on_device.push_back(gradient);
    result.ranges.push_back({.index = i,
                             .parameter = static_cast<char*>(tensor.data_ptr()),
                             .gradient = static_cast<const char*>(gradient.data_ptr()),
                             .offset = offsets_[i],
                             .count = tensor.numel()});
  }
  return result;
}

std::vector<FlatRange> join(const std::vector<FlatRange>& ranges, size_t element_bytes,
                            const std::function<bool(size_t, size_t)>& alike) {
  std::vector<FlatRange> result;
  result.reserve(ranges.size());
  for (const FlatRange& range : ranges) {
    if (!result.empty()) {
      FlatRange& last = result.back();
      const size_t bytes = static_cast<size_t>(last.count) * element_bytes;
      if (last.parameter + bytes == range.parameter && last.gradient + bytes == range.gradient &&
          last.offset + last.count == range.offset && alike(last.index, range.index)) {
        last.count += range.count;
        continue;
      }
    }
    result.push_back(range);
  }
  return result;
}

std::vector<FlatRange> cut(std::vector<FlatRange> ranges, size_t element_bytes) {
  if (std::ranges::all_of(ranges, [](const FlatRange& range) { return range.count <= kAtOnce; })) {
    return ranges;
  }
  std::vector<FlatRange> result;
  for (const FlatRange& range : ranges) {
    for (int64_t begin = 0; begin < range.count; begin += kAtOnce) {
      const size_t bytes = static_cast<size_t>(begin) * element_bytes;
      result.push_back({.index = range.index,
                        .parameter = range.parameter + bytes,
                        .gradient = range.gradient + bytes,
                        .offset = range.offset + begin,
                        .count = std::min(kAtOnce, range.count - begin)});
    }
  }
  return result;
}

}  // namespace troika::optim
