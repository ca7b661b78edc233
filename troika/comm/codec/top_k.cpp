#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "troika/comm/codec/codecs.h"
#include "troika/comm/codec/encodings.h"
#include "troika/comm/codec/memory.h"

namespace troika::comm::codec {

namespace {

c10::ScalarType index_type(int64_t count) {
  return count <= std::numeric_limits<int32_t>::max() ? at::kInt : at::kLong;
}

}  // namespace

int64_t TopKEncoding::chosen_of(int64_t count) const {
  const int64_t wanted = std::llround(density_ * static_cast<double>(count));
  return std::min(count, std::max<int64_t>(1, wanted));
}

int64_t TopKEncoding::bytes_for(at::IntArrayRef sizes, c10::ScalarType type) const {
  const int64_t count = c10::multiply_integers(sizes);
  return chosen_of(count) *
         static_cast<int64_t>(c10::elementSize(type) + c10::elementSize(index_type(count)));
}

void TopKEncoding::encode(const at::Tensor& values, c10::ScalarType type, const at::Tensor& bytes,
                          const at::Tensor& left_out) const {
  const int64_t count = values.numel();
  const at::Tensor flat = values.view({-1});
  const at::Tensor chosen = std::get<1>(flat.abs().topk(chosen_of(count), 0, /*largest=*/true,
                                                        /*sorted=*/false));
  const at::Tensor largest = flat.index_select(0, chosen).to(type);
  bytes.copy_(at::cat({largest.view(at::kByte), chosen.to(index_type(count)).view(at::kByte)}));
  if (!left_out.defined()) return;
  if (!left_out.is_same(values)) left_out.copy_(values);
  left_out.view({-1}).index_add_(0, chosen, largest.to(left_out.scalar_type()).neg());
}

void TopKEncoding::decode(const at::Tensor& bytes, c10::ScalarType type,
                          const at::Tensor& values) const {
  values.zero_();
  add_decoded(bytes, type, values);
}

// Values inside the bytes may be unaligned for their type, so they are copied out.
void TopKEncoding::add_decoded(const at::Tensor& bytes, c10::ScalarType type,
                               const at::Tensor& sum) const {
  const int64_t value_bytes = chosen_of(sum.numel()) * static_cast<int64_t>(c10::elementSize(type));
  const at::Tensor theirs = bytes.narrow(0, 0, value_bytes).clone().view(type);
  const at::Tensor at = bytes.narrow(0, value_bytes, bytes.numel() - value_bytes)
                            .clone()
                            .view(index_type(sum.numel()));
  sum.view({-1}).index_add_(0, at.to(at::kLong), theirs.to(sum.scalar_type()));
}

namespace {

class TopK : public Codec {
 public:
  explicit TopK(const CodecOptions& options)
      : encoding_(options.density), errors_(options.error_feedback) {}

  std::string_view name() const override { return encoding_.name(); }

  void average(const Group& group, const GradientBucket& bucket) override {
    const at::Tensor input = errors_.added_to(bucket, bucket.flat.device());
    const auto type = bucket.flat.scalar_type();
    const at::Tensor own =
        at::empty({encoding_.bytes_for(input.numel(), type)}, input.options().dtype(at::kByte));
    encoding_.encode(input, type, own, errors_.on() ? input : at::Tensor());
    const at::Tensor all = at::empty({group.size(), own.numel()}, own.options());
    const std::string label = fmt::format("bucket {} top-k", bucket.index);
    group.all_gather(all, own, {}, {.label = label}).wait();
    const at::Tensor mean = at::zeros_like(input);
    for (int r = 0; r < group.size(); ++r) encoding_.add_decoded(all[r], type, mean);
    bucket.flat.copy_(mean.div_(group.size()));
    if (errors_.on() && all_finite(bucket.flat)) errors_.keep(bucket, input);
  }

  state::StateDict state() const override { return errors_.state(); }
  void load_state(const state::StateDict& state, double weight) override {
    errors_.load(state, weight, name());
  }

 private:
  const TopKEncoding encoding_;
  ErrorMemory errors_;
};

}  // namespace

std::unique_ptr<Codec> make_top_k(const CodecOptions& options) {
  return std::make_unique<TopK>(options);
}

}  // namespace troika::comm::codec
