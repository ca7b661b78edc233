#include "troika/nn/dropout.h"

#include <fmt/format.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "troika/base/error.h"
#include "troika/compat/compute_threads.h"
#include "troika/compat/torch.h"
#include "troika/nn/kernels/numbers.h"
#include "troika/nn/keyed_draws.h"
#include "troika/nn/token_part.h"

namespace troika::nn {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

MaskPlaces all_places(const at::Tensor& input, int64_t rows) {
  const int64_t all = input.numel() / std::max<int64_t>(input.size(0), 1) * rows;
  return {std::max<int64_t>(all, 1), {0}, all};
}

MaskPlaces places_of(const at::Tensor& input, const ShardOf& shard) {
  int64_t inner = 1;
  for (int64_t dim = shard.dim + 1; dim < input.dim(); ++dim) inner *= input.size(dim);
  return {std::max<int64_t>(input.size(shard.dim) * inner, 1),
          {shard.offset * inner},
          shard.whole * inner};
}

// For inputs [batch, tokens, width] of the tokens of a part, of which they may be a part
// themselves.
MaskPlaces places_of(const at::Tensor& input, const TokenPart& tokens,
                     const std::optional<EqualPart>& part) {
  TROIKA_CHECK(input.dim() == 3, "dropout of tokens has an input of shape [batch, tokens, width]");
  constexpr int64_t kTokens = 1;
  const int64_t own = input.size(1), width = input.size(2);
  const bool are_cut_again = part && part->dim == kTokens, has_columns = part && !are_cut_again;
  const int64_t before = are_cut_again ? part->index * own : 0;
  const int64_t whole_width = has_columns ? part->count * width : width;
  const int64_t column = has_columns ? part->index * width : 0;
  std::vector<int64_t> positions;
  for (const auto& [first, count] : tokens.stretches(are_cut_again ? part->count * own : own)) {
    for (int64_t i = 0; i < count; ++i) positions.push_back(first + i);
  }
  MaskPlaces places{width, {}, tokens.count * static_cast<int64_t>(positions.size()) * whole_width};
  for (int64_t i = 0; i < own; ++i) {
    places.bases.push_back(positions[static_cast<size_t>(before + i)] * whole_width + column);
  }
  return places;
}

uint32_t threshold(double p) {
  return static_cast<uint32_t>(std::ldexp(p, 32));
}

// Registered with the dispatcher, so that compat::FakeTensorGuard can skip it.
at::Tensor& keyed_dropout_out(const at::Tensor& x, at::IntArrayRef keys, double p, int64_t run,
                              at::IntArrayRef bases, int64_t stride, at::Tensor& out) {
  constexpr int64_t kGrain = 1 << 14;
  const int64_t per_sample = x.numel() / static_cast<int64_t>(keys.size());
  const auto runs = static_cast<int64_t>(bases.size());
  const auto number = kernels::number_of(x);
  compat::parallel_for(0, x.numel(), kGrain, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t element = begin % per_sample, in_run = element % run;
      const int64_t base = bases[static_cast<size_t>(element / run % runs)];
      const int64_t count = std::min({end - begin, run - in_run, per_sample - element});
      kernels::best().dropout(
          number, kernels::at_element(x, begin), kernels::at_element(out, begin),
          static_cast<unsigned long>(keys[static_cast<size_t>(begin / per_sample)]),
          static_cast<unsigned>(base + in_run + element / (run * runs) * stride), threshold(p),
          static_cast<float>(1 / (1 - p)), static_cast<size_t>(count));
      begin += count;
    }
  });
  return out;
}

TORCH_LIBRARY_FRAGMENT(troika, library) {
  library.def(
      "keyed_dropout(Tensor x, int[] keys, float p, int run, int[] bases, int stride, "
      "Tensor(a!) out) -> Tensor(a!)");
}

TORCH_LIBRARY_IMPL(troika, CPU, library) {
  library.impl("keyed_dropout", keyed_dropout_out);
}

const auto& keyed_dropout_operator() {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("troika::keyed_dropout", "")
                             .typed<at::Tensor&(const at::Tensor&, at::IntArrayRef, double, int64_t,
                                                at::IntArrayRef, int64_t, at::Tensor&)>();
  return op;
}

// Computes the same as the kernel with LibTorch's operators, for other types and devices.
at::Tensor kept_by_operators(const at::Tensor& x, at::IntArrayRef keys, double p,
                             const MaskPlaces& places) {
  constexpr int64_t kLow = 0xffffffff;
  const auto samples = static_cast<int64_t>(keys.size());
  const auto finalised = [](at::Tensor h) {
    h = h.bitwise_xor(h.bitwise_right_shift(16)).mul_(int64_t{0x85ebca6b}).bitwise_and_(kLow);
    h = h.bitwise_xor(h.bitwise_right_shift(13)).mul_(int64_t{0xc2b2ae35}).bitwise_and_(kLow);
    return h.bitwise_xor(h.bitwise_right_shift(16));
  };
  const auto longs = x.options().dtype(at::kLong);
  const auto key = at::tensor(keys, at::kLong).to(x.device()).unsqueeze(1);
  const auto element = at::arange(x.numel() / samples, longs);
  const auto runs = static_cast<int64_t>(places.bases.size());
  const auto run = element.div(places.run, "floor");
  const auto index = at::tensor(places.bases, longs)
                         .index_select(0, run.remainder(runs))
                         .add_(element.remainder(places.run))
                         .add_(run.div(runs, "floor"), places.stride);
  const auto low = index.add(key.bitwise_and(kLow)).bitwise_and_(kLow);
  const auto high = key.bitwise_right_shift(32).bitwise_and_(kLow);
  return finalised(finalised(low).bitwise_xor_(high)).ge(int64_t{threshold(p)}).view(x.sizes());
}

class KeyedDropout : public torch::autograd::Function<KeyedDropout> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const std::vector<int64_t>& keys, double p, const MaskPlaces& places) {
    context->saved_data["keys"] = keys;
    context->saved_data["p"] = p;
    context->saved_data["bases"] = places.bases;
    context->saved_data["run"] = places.run;
    context->saved_data["stride"] = places.stride;
    return masked_by_keys(x, keys, p, places);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const MaskPlaces places{context->saved_data["run"].toInt(),
                            context->saved_data["bases"].toIntVector(),
                            context->saved_data["stride"].toInt()};
    return {
        KeyedDropout::apply(gradients[0].contiguous(), context->saved_data["keys"].toIntVector(),
                            context->saved_data["p"].toDouble(), places),
        {},
        {},
        {}};
  }
};

at::Tensor keyed_dropout(const at::Tensor& input, double p,
                         const std::optional<MaskPlaces>& places) {
  if (p == 0) return input;
  const auto keys = places ? keys_for_a_part() : DrawState::current().next_keys();
  if (keys.empty()) return at::dropout(input, p, /*train=*/true);
  const auto samples = static_cast<int64_t>(keys.size());
  if (input.dim() == 0 || input.size(0) % samples != 0) {
    throw Error(
        "nn", ErrorKind::usage,
        {.what = "dropout cannot find the samples of its input",
         .got = c10::str("shape ", input.sizes()),
         .expected = fmt::format("as many rows for each of {} samples", samples),
         .hint = "dim 0 of the input must be the batch dimension; at::dropout() takes any tensor"});
  }
  if (input.numel() == 0) return input;
  const at::Tensor packed = input.contiguous();
  return KeyedDropout::apply(packed, keys, p,
                             places ? *places : all_places(packed, input.size(0) / samples));
}

}  // namespace

at::Tensor dropout(const at::Tensor& input, double p) {
  return keyed_dropout(input, p, std::nullopt);
}

at::Tensor dropout(const at::Tensor& input, double p, const ShardOf& shard) {
  return keyed_dropout(input, p, places_of(input, shard));
}

std::vector<int64_t> keys_for_a_part() {
  auto keys = DrawState::current().next_keys();
  if (!keys.empty()) return keys;
  throw Error("nn", ErrorKind::usage,
              {.what = "dropout of a part of whole tensors",
               .got = "draws that are not keyed",
               .expected = "an nn::KeyedDraws object on this thread",
               .hint = "make one around each forward and backward pass, with the same seed and "
                       "sample numbers on all ranks of the axis"});
}

at::Tensor masked_by_keys(const at::Tensor& input, const std::vector<int64_t>& keys, double p,
                          const MaskPlaces& places) {
  if (!kernels::takes(input)) {
    return input.mul(kept_by_operators(input, keys, p, places)).mul_(1 / (1 - p));
  }
  at::Tensor out = at::empty_like(input);
  return keyed_dropout_operator().call(input, keys, p, places.run, places.bases, places.stride,
                                       out);
}

at::Tensor Dropout::dropped(const at::Tensor& input) const {
  const auto* const tokens = TokenPart::current();
  if (!tokens) return dropout(input, p_, part_);
  return keyed_dropout(input, p_, places_of(input, *tokens, part_));
}

at::Tensor dropout(const at::Tensor& input, double p, const std::optional<EqualPart>& part) {
  if (!part) return dropout(input, p);
  const int64_t dim = part->dim < 0 ? part->dim + input.dim() : part->dim;
  const int64_t size = input.size(dim);
  return dropout(input, p, ShardOf{dim, part->index * size, part->count * size});
}

}  // namespace troika::nn
