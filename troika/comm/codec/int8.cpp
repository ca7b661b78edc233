#include <ATen/ATen.h>
#include <fmt/format.h>

#include <utility>

#include "troika/comm/codec/codecs.h"
#include "troika/comm/codec/memory.h"

namespace troika::comm::codec {

namespace {

constexpr int kLevels = 127;

// [blocks, elements] of float32 or float64 -> one row of bytes a block: its scale, then its
// elements.
at::Tensor encode(const at::Tensor& blocks) {
  const at::Tensor scale = blocks.abs().amax(1, /*keepdim=*/true).div_(kLevels);
  // 0 / 0 in a block of zeros, and whatever a scale that is not finite makes: that scale turns the
  // zeros into NaN again.
  const at::Tensor levels = blocks.div(scale).nan_to_num_(0).round_().clamp_(-kLevels, kLevels);
  return at::cat({scale.view(at::kByte), levels.to(at::kChar).view(at::kByte)}, 1);
}

// The blocks that encode() would send exactly. Only element-wise operations, so that ranks of
// different processors get the same bits.
at::Tensor decode(const at::Tensor& rows, c10::ScalarType type) {
  const auto scale_bytes = static_cast<int64_t>(c10::elementSize(type));
  const at::Tensor scale =
      rows.narrow(1, 0, scale_bytes).clone(at::MemoryFormat::Contiguous).view(type);
  const at::Tensor levels = rows.narrow(1, scale_bytes, rows.size(1) - scale_bytes).view(at::kChar);
  return levels.to(type).mul_(scale);
}

class Int8 : public Codec {
 public:
  explicit Int8(const CodecOptions& options)
      : block_(options.block), errors_(options.error_feedback) {}

  std::string_view name() const override { return "int8"; }

  void average(const Group& group, const GradientBucket& bucket) override {
    const at::Tensor input = errors_.added_to(bucket);
    const auto type = input.scalar_type();
    const int64_t count = input.numel();
    const int64_t rows = (count + block_ - 1) / block_;
    const at::Tensor blocks =
        at::constant_pad_nd(input, {0, rows * block_ - count}).view({rows, block_});

    const int ranks = group.size();
    std::vector<int64_t> shares;
    int64_t first = 0;  // block of this rank's share
    for (int r = 0; r < ranks; ++r) {
      if (r == group.rank()) first = rows * r / ranks;
      shares.push_back(rows * (r + 1) / ranks - rows * r / ranks);
    }
    const int64_t mine = shares[static_cast<size_t>(group.rank())];

    const at::Tensor sent = encode(blocks);
    const at::Tensor incoming = at::empty({ranks * mine, sent.size(1)}, sent.options());
    const std::string label = fmt::format("bucket {} int8", bucket.index);
    group
        .all_to_all(incoming, sent, std::vector<int64_t>(shares.size(), mine), shares,
                    {.label = label})
        .wait();
    const at::Tensor mean = decode(incoming, type).view({ranks, mine, block_}).sum(0).div_(ranks);

    const at::Tensor returned = encode(mean);
    const at::Tensor all = at::empty_like(sent);
    group.all_gather(all, returned, shares, {.label = label}).wait();
    bucket.flat.copy_(decode(all, type).view(-1).narrow(0, 0, count));

    if (errors_.on() && all_finite(bucket.flat)) {
      const at::Tensor left_out = blocks - decode(sent, type);
      left_out.narrow(0, first, mine).add_(mean - decode(returned, type), ranks);
      errors_.keep(bucket, left_out.view(-1).narrow(0, 0, count));
    }
  }

  State state() const override { return errors_.state(); }
  void load_state(const State& state) override { errors_.load(state, name()); }

 private:
  const int64_t block_;
  ErrorMemory errors_;
};

}  // namespace

std::unique_ptr<Codec> make_int8(const CodecOptions& options) {
  return std::make_unique<Int8>(options);
}

}  // namespace troika::comm::codec
