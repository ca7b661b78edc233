#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "troika/comm/codec/codecs.h"
#include "troika/comm/codec/encodings.h"
#include "troika/comm/codec/memory.h"
#include "troika/comm/kernels/levels.h"

namespace troika::comm::codec {

int64_t Int8Encoding::row_bytes(c10::ScalarType type) const {
  return block_ + static_cast<int64_t>(c10::elementSize(computation_type(type)));
}

int64_t Int8Encoding::bytes_for(at::IntArrayRef sizes, c10::ScalarType type) const {
  return rows_of(c10::multiply_integers(sizes)) * row_bytes(type);
}

// The kernel leaves the quantisation errors in its input.
void Int8Encoding::encode(const at::Tensor& values, c10::ScalarType type, const at::Tensor& bytes,
                          const at::Tensor& left_out) const {
  static kernels::ToLevels* const to_levels = TROIKA_BEST_KERNEL(
      kernels::to_levels_baseline, kernels::to_levels_avx2, kernels::to_levels_avx512);
  const auto scale_type = computation_type(type);
  const bool in_place = left_out.defined() && left_out.is_same(values);
  const at::Tensor rest = in_place ? values : values.to(scale_type, false, /*copy=*/true);
  to_levels(rest.data_ptr(), static_cast<size_t>(rest.numel()), static_cast<size_t>(block_),
            scale_type == at::kDouble, static_cast<char*>(bytes.data_ptr()));
  if (left_out.defined() && !in_place) left_out.copy_(rest);
}

void Int8Encoding::decode(const at::Tensor& bytes, c10::ScalarType type,
                          const at::Tensor& values) const {
  const auto scale_type = computation_type(type);
  if (values.scalar_type() == scale_type) {
    decode_all(bytes, values);
    return;
  }
  const auto wide = at::empty(values.sizes(), scale_type);
  decode_all(bytes, wide);
  values.copy_(wide);
}

bool Int8Encoding::decode_all(const at::Tensor& bytes, const at::Tensor& values) const {
  static kernels::FromLevels* const from_levels = TROIKA_BEST_KERNEL(
      kernels::from_levels_baseline, kernels::from_levels_avx2, kernels::from_levels_avx512);
  return from_levels(static_cast<const char*>(bytes.data_ptr()),
                     static_cast<size_t>(values.numel()), static_cast<size_t>(block_),
                     values.scalar_type() == at::kDouble, values.data_ptr());
}

namespace {

class Int8 : public Codec {
 public:
  explicit Int8(const CodecOptions& options)
      : encoding_(options.block), errors_(options.error_feedback) {}

  std::string_view name() const override { return encoding_.name(); }

  // Runs on the host, also for buckets on a device.
  void average(const Group& group, const GradientBucket& bucket) override {
    const at::Tensor values = errors_.added_to(bucket, at::kCPU);
    const auto type = values.scalar_type();
    const int64_t count = values.numel();
    const int64_t block = encoding_.block();
    const int64_t rows = encoding_.rows_of(count);
    const int64_t row_bytes = encoding_.row_bytes(type);

    const int ranks = group.size();
    std::vector<int64_t> shares;
    for (int r = 0; r < ranks; ++r) shares.push_back(rows * (r + 1) / ranks - rows * r / ranks);
    const int64_t first = rows * group.rank() / ranks;  // first block of this rank's share
    const int64_t mine = shares[static_cast<size_t>(group.rank())];

    const at::Tensor sent = at::empty({rows, row_bytes}, at::kByte);
    encoding_.encode(values, type, sent, values);
    const at::Tensor incoming = at::empty({ranks * mine, row_bytes}, at::kByte);
    const std::string label = fmt::format("bucket {} int8", bucket.index);
    group
        .all_to_all(incoming, sent, std::vector<int64_t>(shares.size(), mine), shares,
                    {.label = label})
        .wait();
    const at::Tensor terms = at::empty({ranks, mine * block}, type);
    encoding_.decode_all(incoming, terms);
    const at::Tensor mean = terms.mean(0);

    const at::Tensor returned = at::empty({mine, row_bytes}, at::kByte);
    encoding_.encode(mean, type, returned, mean);
    const at::Tensor all = at::empty_like(sent);
    group.all_gather(all, returned, shares, {.label = label}).wait();
    const bool in_place = bucket.flat.device().is_cpu() && bucket.flat.scalar_type() == type;
    const at::Tensor result = in_place ? bucket.flat : at::empty_like(values);
    const bool finite = encoding_.decode_all(all, result);
    if (!in_place) bucket.flat.copy_(result);

    if (!errors_.on() || !finite) return;
    const int64_t at = first * block;
    const int64_t length = std::min(mine * block, count - at);
    values.narrow(0, at, length).add_(mean.narrow(0, 0, length), ranks);
    errors_.keep(bucket, values);
  }

  state::StateDict state() const override { return errors_.state(); }
  void load_state(const state::StateDict& state, double weight) override {
    errors_.load(state, weight, name());
  }

 private:
  const Int8Encoding encoding_;
  ErrorMemory errors_;
};

}  // namespace

std::unique_ptr<Codec> make_int8(const CodecOptions& options) {
  return std::make_unique<Int8>(options);
}

}  // namespace troika::comm::codec
