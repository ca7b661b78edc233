#include <ATen/ATen.h>
#include <fmt/format.h>

#include <limits>

#include "troika/comm/codec/codecs.h"
#include "troika/comm/codec/encodings.h"

namespace troika::comm::codec {

int64_t CopyEncoding::bytes_for(at::IntArrayRef sizes, c10::ScalarType type) const {
  return c10::multiply_integers(sizes) * static_cast<int64_t>(c10::elementSize(type));
}

void CopyEncoding::encode(const at::Tensor& values, c10::ScalarType type, const at::Tensor& bytes,
                          const at::Tensor& left_out) const {
  const auto copy = bytes.view(type).view(values.sizes());
  copy.copy_(values);
  if (left_out.defined()) left_out.copy_(values - copy);
}

void CopyEncoding::decode(const at::Tensor& bytes, c10::ScalarType type,
                          const at::Tensor& values) const {
  values.copy_(bytes.view(type).view(values.sizes()));
}

std::string_view CastEncoding::name() const {
  return type_ == at::kHalf ? "fp16" : "bf16";
}

int64_t CastEncoding::bytes_for(at::IntArrayRef sizes, c10::ScalarType) const {
  return c10::multiply_integers(sizes) * static_cast<int64_t>(c10::elementSize(type_));
}

at::Tensor CastEncoding::elements(const at::Tensor& bytes) const {
  return bytes.view(type_);
}

void CastEncoding::encode(const at::Tensor& values, c10::ScalarType, const at::Tensor& bytes,
                          const at::Tensor& left_out) const {
  const auto rounded = elements(bytes).view(values.sizes());
  // BFloat16 has the range of float32.
  if (type_ != at::kHalf || values.scalar_type() == type_) {
    rounded.copy_(values);
  } else {
    const double limit = std::numeric_limits<c10::Half>::max();
    // An infinity must stay infinite: it shows that this step is lost.
    rounded.copy_(at::where(values.isinf(), values, values.clamp(-limit, limit)));
  }
  if (left_out.defined()) left_out.copy_(values - rounded.to(values.scalar_type()));
}

void CastEncoding::decode(const at::Tensor& bytes, c10::ScalarType,
                          const at::Tensor& values) const {
  values.copy_(elements(bytes).view(values.sizes()));
}

namespace {

class None : public Codec {
 public:
  std::string_view name() const override { return "none"; }
  void average(const Group& group, const GradientBucket& bucket) override {
    const std::string label = fmt::format("bucket {}", bucket.index);
    group.all_reduce(bucket.flat, ReduceOp::average, {.label = label}).wait();
  }
};

class Cast : public Codec {
 public:
  explicit Cast(c10::ScalarType type) : encoding_(type) {}

  std::string_view name() const override { return encoding_.name(); }

  void average(const Group& group, const GradientBucket& bucket) override {
    const std::string label = fmt::format("bucket {}", bucket.index);
    const auto type = bucket.flat.scalar_type();
    const at::Tensor bytes = at::empty({encoding_.bytes_for(bucket.flat.numel(), type)},
                                       bucket.flat.options().dtype(at::kByte));
    encoding_.encode(bucket.flat, type, bytes, {});
    group.all_reduce(encoding_.elements(bytes), ReduceOp::average, {.label = label}).wait();
    encoding_.decode(bytes, type, bucket.flat);
  }

 private:
  const CastEncoding encoding_;
};

}  // namespace

std::unique_ptr<Codec> make_none() {
  return std::make_unique<None>();
}

std::unique_ptr<Codec> make_cast(c10::ScalarType type) {
  return std::make_unique<Cast>(type);
}

}  // namespace troika::comm::codec
