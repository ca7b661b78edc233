#include <ATen/ATen.h>
#include <fmt/format.h>

#include <limits>

#include "troika/comm/codec/codecs.h"

namespace troika::comm::codec {

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
  explicit Cast(c10::ScalarType type) : type_(type) {}

  std::string_view name() const override { return type_ == at::kHalf ? "fp16" : "bf16"; }

  void average(const Group& group, const GradientBucket& bucket) override {
    const std::string label = fmt::format("bucket {}", bucket.index);
    const at::Tensor wire = rounded(bucket.flat);
    group.all_reduce(wire, ReduceOp::average, {.label = label}).wait();
    bucket.flat.copy_(wire);
  }

 private:
  // BFloat16 has the range of float32.
  at::Tensor rounded(const at::Tensor& flat) const {
    if (type_ != at::kHalf || flat.scalar_type() == type_) return flat.to(type_);
    const double limit = std::numeric_limits<c10::Half>::max();
    // An infinity must stay one: it tells that this step is lost.
    return at::where(flat.isinf(), flat, flat.clamp(-limit, limit)).to(type_);
  }

  const c10::ScalarType type_;
};

}  // namespace

std::unique_ptr<Codec> make_none() {
  return std::make_unique<None>();
}

std::unique_ptr<Codec> make_cast(c10::ScalarType type) {
  return std::make_unique<Cast>(type);
}

}  // namespace troika::comm::codec
