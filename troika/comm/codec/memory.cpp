#include "troika/comm/codec/memory.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "troika/base/error.h"
#include "troika/base/text.h"

namespace troika::comm::codec {

namespace {

constexpr std::string_view kError = "error";

std::optional<int64_t> number_after(std::string_view prefix, std::string_view text) {
  if (!text.starts_with(prefix)) return std::nullopt;
  return parse_int(text.substr(prefix.size()));
}

std::string shape_text(at::IntArrayRef shape, c10::ScalarType type) {
  return fmt::format("{} [{}]", c10::toString(type), fmt::join(shape.begin(), shape.end(), ", "));
}

}  // namespace

std::string StateKey::to_text() const {
  if (part) return fmt::format("bucket{}.part{}.{}", bucket, *part, field);
  return fmt::format("bucket{}.{}", bucket, field);
}

std::optional<StateKey> StateKey::from_text(const std::string& text) {
  const auto words = split(text, '.');
  if (words.size() < 2 || words.size() > 3) return std::nullopt;
  const auto bucket = number_after("bucket", words[0]);
  if (!bucket) return std::nullopt;
  StateKey key{.bucket = *bucket, .field = words.back()};
  if (words.size() == 3) {
    key.part = number_after("part", words[1]);
    if (!key.part) return std::nullopt;
  }
  return key.to_text() == text ? std::optional(key) : std::nullopt;
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
              {.what = fmt::format("gradient codec: {} does not fit its bucket", key.to_text()),
               .got = shape_text(kept.sizes(), kept.scalar_type()),
               .expected = shape_text(shape, type),
               .hint = "buckets keep their shapes from step to step and over a checkpoint"});
}

c10::ScalarType computation_type(c10::ScalarType type) {
  return type == at::kDouble ? at::kDouble : at::kFloat;
}

bool all_finite(const at::Tensor& tensor) {
  return at::isfinite(tensor).all().item<bool>();
}

at::Tensor ErrorMemory::added_to(const GradientBucket& bucket) const {
  TROIKA_CHECK(bucket.flat.dim() == 1 && bucket.flat.is_contiguous() &&
                   bucket.flat.is_floating_point() && !bucket.flat.requires_grad(),
               "a bucket is flat, contiguous, of a floating type and without a graph");
  const auto type = computation_type(bucket.flat.scalar_type());
  const at::Tensor sum = bucket.flat.to(type, /*non_blocking=*/false, /*copy=*/true);
  if (const auto kept = errors_.find(bucket.index); kept != errors_.end()) {
    check_fits({.bucket = bucket.index, .field = std::string(kError)}, kept->second, sum.sizes(),
               type);
    sum.add_(kept->second.to(sum.device()));
  }
  return sum;
}

void ErrorMemory::keep(const GradientBucket& bucket, at::Tensor left_out) {
  if (on_) errors_[bucket.index] = std::move(left_out);
}

state::StateDict ErrorMemory::state() const {
  state::StateDict state;
  for (const auto& [bucket, error] : errors_) {
    state.emplace_back(StateKey{.bucket = bucket, .field = std::string(kError)}.to_text(), error);
  }
  return state;
}

void ErrorMemory::load(const state::StateDict& state, std::string_view codec) {
  std::map<int64_t, at::Tensor> errors;
  for (const auto& [name, tensor] : state) {
    const auto key = StateKey::from_text(name);
    if (!on_ || !key || key->part || key->field != kError) refuse_state(codec, name);
    errors[key->bucket] = tensor.detach().clone();
  }
  errors_ = std::move(errors);
}

}  // namespace troika::comm::codec
