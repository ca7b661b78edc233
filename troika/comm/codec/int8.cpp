#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "troika/comm/codec/codecs.h"
#include "troika/comm/codec/memory.h"
#include "troika/comm/kernels/levels.h"

namespace troika::comm::codec {

namespace {

class Int8 : public Codec {
 public:
  explicit Int8(const CodecOptions& options)
      : block_(options.block), errors_(options.error_feedback) {}

  std::string_view name() const override { return "int8"; }

  // On the host, whatever the device of the bucket.
  void average(const Group& group, const GradientBucket& bucket) override {
    const at::Tensor values = errors_.added_to(bucket).cpu();
    const auto type = values.scalar_type();
    const int64_t count = values.numel();
    const int64_t rows = (count + block_ - 1) / block_;
    const int64_t row_bytes = block_ + static_cast<int64_t>(c10::elementSize(type));

    const int ranks = group.size();
    std::vector<int64_t> shares;
    for (int r = 0; r < ranks; ++r) shares.push_back(rows * (r + 1) / ranks - rows * r / ranks);
    const int64_t first = rows * group.rank() / ranks;  // block of this rank's share
    const int64_t mine = shares[static_cast<size_t>(group.rank())];

    const at::Tensor sent = at::empty({rows, row_bytes}, at::kByte);
    encode(values, sent);
    const at::Tensor incoming = at::empty({ranks * mine, row_bytes}, at::kByte);
    const std::string label = fmt::format("bucket {} int8", bucket.index);
    group
        .all_to_all(incoming, sent, std::vector<int64_t>(shares.size(), mine), shares,
                    {.label = label})
        .wait();
    const at::Tensor terms = at::empty({ranks, mine * block_}, type);
    decode(incoming, terms);
    const at::Tensor mean = terms.mean(0);

    const at::Tensor returned = at::empty({mine, row_bytes}, at::kByte);
    encode(mean, returned);
    const at::Tensor all = at::empty_like(sent);
    group.all_gather(all, returned, shares, {.label = label}).wait();
    const bool in_place = bucket.flat.device().is_cpu() && bucket.flat.scalar_type() == type;
    const at::Tensor result = in_place ? bucket.flat : at::empty_like(values);
    const bool finite = decode(all, result);
    if (!in_place) bucket.flat.copy_(result);

    if (!errors_.on() || !finite) return;
    const int64_t at = first * block_;
    const int64_t length = std::min(mine * block_, count - at);
    values.narrow(0, at, length).add_(mean.narrow(0, 0, length), ranks);
    errors_.keep(bucket, values);
  }

  state::StateDict state() const override { return errors_.state(); }
  void load_state(const state::StateDict& state) override { errors_.load(state, name()); }

 private:
  // `values` become what the rows leave out.
  void encode(const at::Tensor& values, const at::Tensor& rows) const {
    static kernels::ToLevels* const to_levels = TROIKA_BEST_KERNEL(
        kernels::to_levels_baseline, kernels::to_levels_avx2, kernels::to_levels_avx512);
    to_levels(values.data_ptr(), static_cast<size_t>(values.numel()), static_cast<size_t>(block_),
              values.scalar_type() == at::kDouble, static_cast<char*>(rows.data_ptr()));
  }

  // Returns whether all are finite.
  bool decode(const at::Tensor& rows, const at::Tensor& values) const {
    static kernels::FromLevels* const from_levels = TROIKA_BEST_KERNEL(
        kernels::from_levels_baseline, kernels::from_levels_avx2, kernels::from_levels_avx512);
    return from_levels(static_cast<const char*>(rows.data_ptr()),
                       static_cast<size_t>(values.numel()), static_cast<size_t>(block_),
                       values.scalar_type() == at::kDouble, values.data_ptr());
  }

  const int64_t block_;
  ErrorMemory errors_;
};

}  // namespace

std::unique_ptr<Codec> make_int8(const CodecOptions& options) {
  return std::make_unique<Int8>(options);
}

}  // namespace troika::comm::codec
