#include "troika/comm/codec/memory.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "troika/base/error.h"

namespace troika::comm::codec {

namespace {

constexpr std::string_view kError = "error";

std::string shape_text(at::IntArrayRef shape, c10::ScalarType type) {
  return fmt::format("{} [{}]", c10::toString(type), fmt::join(shape.begin(), shape.end(), ", "));
}

// Returns the part of a tensor like bucket.flat that belongs to the bucket's parameter i.
at::Tensor part_of(const at::Tensor& like_flat, const GradientBucket& bucket, size_t i) {
  const auto& part = bucket.parts[i];
  const int64_t begin = part.storage_offset() - bucket.flat.storage_offset();
  return like_flat.as_strided(part.sizes(), part.strides(), like_flat.storage_offset() + begin);
}

}  // namespace

StateKey StateKey::from_text(const std::string& text) {
  const auto dot = text.find('.');
  if (dot == std::string::npos) return {.field = text, .parameter = {}};
  return {.field = text.substr(0, dot), .parameter = text.substr(dot + 1)};
}

void refuse_state(std::string_view codec, const std::string& name) {
  throw Error("comm", ErrorKind::usage,
              {.what = fmt::format("gradient codec {} cannot load a state with {}", codec, name),
               .hint = "load with the codec options it was saved with"});
}

void check_fits(const StateKey& key, const at::Tensor& kept, at::IntArrayRef shape,
                c10::ScalarType type) {
  if (kept.sizes() == shape && kept.scalar_type() == type) return;
  throw Error("comm", ErrorKind::usage,
              {.what = fmt::format("gradient codec: {} does not fit its parameter", key.to_text()),
               .got = shape_text(kept.sizes(), kept.scalar_type()),
               .expected = shape_text(shape, type),
               .hint = "parameters keep their shapes from step to step and over a checkpoint"});
}

void require_names(const GradientBucket& bucket) {
  TROIKA_CHECK(bucket.names.size() == bucket.parts.size(), "each part of a bucket has a name");
}

c10::ScalarType computation_type(c10::ScalarType type) {
  return type == at::kDouble ? at::kDouble : at::kFloat;
}

bool all_finite(const at::Tensor& tensor) {
  return at::isfinite(tensor).all().item<bool>();
}

at::Tensor ErrorMemory::added_to(const GradientBucket& bucket, at::Device device) const {
  TROIKA_CHECK(bucket.flat.dim() == 1 && bucket.flat.is_contiguous() &&
                   bucket.flat.is_floating_point() && !bucket.flat.requires_grad(),
               "a bucket is flat, contiguous, of a floating type and without a graph");
  const auto type = computation_type(bucket.flat.scalar_type());
  const at::Tensor sum = bucket.flat.to(device, type, /*non_blocking=*/false, /*copy=*/true);
  for (size_t i = 0; !errors_.empty() && i < bucket.names.size(); ++i) {
    const auto kept = errors_.find(bucket.names[i]);
    if (kept == errors_.end()) continue;
    const at::Tensor part = part_of(sum, bucket, i);
    check_fits({std::string(kError), kept->first}, kept->second, part.sizes(), type);
    part.add_(kept->second.to(device));
  }
  return sum;
}

void ErrorMemory::keep(const GradientBucket& bucket, const at::Tensor& left_out) {
  if (!on_) return;
  require_names(bucket);
  for (size_t i = 0; i < bucket.names.size(); ++i) {
    errors_[bucket.names[i]] = part_of(left_out, bucket, i);
  }
}

state::StateDict ErrorMemory::state() const {
  state::StateDict state;
  for (const auto& [parameter, error] : errors_) {
    state.emplace_back(StateKey{std::string(kError), parameter}.to_text(), error);
  }
  return state;
}

void ErrorMemory::load(const state::StateDict& state, double weight, std::string_view codec) {
  std::map<std::string, at::Tensor> errors;
  for (const auto& [name, tensor] : state) {
    const auto key = StateKey::from_text(name);
    if (!on_ || key.parameter.empty() || key.field != kError) refuse_state(codec, name);
    if (weight != 0) errors[key.parameter] = tensor.detach().clone().mul_(weight);
  }
  errors_ = std::move(errors);
}

}  // namespace troika::comm::codec
