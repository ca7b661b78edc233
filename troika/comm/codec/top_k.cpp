#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "troika/comm/codec/codecs.h"
#include "troika/comm/codec/memory.h"

namespace troika::comm::codec {

namespace {

class TopK : public Codec {
 public:
  explicit TopK(const CodecOptions& options)
      : density_(options.density), errors_(options.error_feedback) {}

  std::string_view name() const override { return "topk"; }

  void average(const Group& group, const GradientBucket& bucket) override {
    const at::Tensor input = errors_.added_to(bucket);
    const int64_t count = input.numel();
    const int64_t wanted = std::llround(density_ * static_cast<double>(count));
    const int64_t k = std::min(count, std::max<int64_t>(1, wanted));
    const at::Tensor chosen = std::get<1>(input.abs().topk(k, 0, /*largest=*/true,
                                                           /*sorted=*/false));
    const at::Tensor values = input.index_select(0, chosen).to(bucket.flat.scalar_type());
    const auto index_type = count <= std::numeric_limits<int32_t>::max() ? at::kInt : at::kLong;

    // One message a rank: values, then indices. Slices of it need not be aligned for their type,
    // so they are copied out.
    const at::Tensor own = at::cat({values.view(at::kByte), chosen.to(index_type).view(at::kByte)});
    const at::Tensor all = at::empty({group.size(), own.numel()}, own.options());
    const std::string label = fmt::format("bucket {} top-k", bucket.index);
    group.all_gather(all, own, {}, {.label = label}).wait();

    const int64_t value_bytes = k * values.element_size();
    const at::Tensor mean = at::zeros_like(input);
    for (int r = 0; r < group.size(); ++r) {
      const at::Tensor theirs = all[r].narrow(0, 0, value_bytes).clone().view(values.scalar_type());
      const at::Tensor at =
          all[r].narrow(0, value_bytes, own.numel() - value_bytes).clone().view(index_type);
      mean.index_add_(0, at.to(at::kLong), theirs.to(mean.scalar_type()));
    }
    bucket.flat.copy_(mean.div_(group.size()));
    if (errors_.on() && all_finite(bucket.flat)) {
      errors_.keep(bucket, input.index_add_(0, chosen, values.to(input.scalar_type()).neg()));
    }
  }

  state::StateDict state() const override { return errors_.state(); }
  void load_state(const state::StateDict& state) override { errors_.load(state, name()); }

 private:
  const double density_;
  ErrorMemory errors_;
};

}  // namespace

std::unique_ptr<Codec> make_top_k(const CodecOptions& options) {
  return std::make_unique<TopK>(options);
}

}  // namespace troika::comm::codec
