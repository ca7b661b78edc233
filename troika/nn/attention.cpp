#include "troika/nn/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "troika/base/clock.h"
#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/compat/torch.h"
#include "troika/nn/causal_products.h"
#include "troika/nn/dropout.h"
#include "troika/nn/key_value_cache.h"
#include "troika/nn/take_turns.h"

namespace troika::nn {

namespace {

// For inputs that causal_products() does not accept, [batch, heads, positions, size] each.
at::Tensor eager_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double p,
                           const std::optional<EqualPart>& part) {
  const int64_t length = q.size(2), seen = k.size(2);
  const auto per_head = [](const at::Tensor& x) { return x.reshape({-1, x.size(2), x.size(3)}); };
  const double never = -std::numeric_limits<double>::infinity();
  const at::Tensor future = at::full({length, seen}, never, q.options()).triu_(1 + seen - length);
  const at::Tensor scores =
      at::baddbmm(future, per_head(q), per_head(k).transpose(1, 2),
                  /*beta=*/1, /*alpha=*/1 / std::sqrt(static_cast<double>(q.size(3))));
  at::Tensor weights = at::softmax(scores, -1);
  if (part) {
    const EqualPart of_heads{1, part->index, part->count};
    weights = dropout(weights.view({q.size(0), q.size(1), length, seen}), p, of_heads);
    weights = weights.view_as(scores);
  } else {
    weights = dropout(weights, p);
  }
  return at::bmm(weights, per_head(v)).view(q.sizes());
}

// Returns heads of keys or values as often as query heads use them, [batch, positions, heads,
// size].
at::Tensor repeat_heads(const at::Tensor& heads, int64_t times) {
  if (times == 1) return heads;
  const auto sizes = heads.sizes();
  return heads.unsqueeze(3).expand({sizes[0], sizes[1], sizes[2], times, sizes[3]}).flatten(2, 3);
}

// Returns the part of `shape` that is timed: about 4 GFLOP per forward and backward pass. Each head
// takes 14 length^2 size FLOPs (two products forward; five products of half that cost backward).
AttentionShape timed_part(AttentionShape shape) {
  constexpr double kFlops = 4e9;
  shape.length = std::min<int64_t>(shape.length, 2048);
  const double flops_of_head = 14.0 * static_cast<double>(shape.length * shape.length * shape.size);
  const auto most = std::max<int64_t>(at::get_num_threads(), std::llround(kFlops / flops_of_head));
  shape.heads = std::min(shape.batch * shape.heads, most);
  shape.batch = 1;
  return shape;
}

}  // namespace

const std::vector<std::string>& attention_names() {
  static const std::vector<std::string> names{"auto", "eager", "sdpa"};
  return names;
}

const std::string& attention_name(Attention attention) {
  return attention_names()[static_cast<size_t>(attention)];
}

Attention parse_attention(const std::string& name) {
  const auto& names = attention_names();
  const auto found = std::ranges::find(names, name);
  if (found != names.end()) return static_cast<Attention>(found - names.begin());
  throw Error("nn", ErrorKind::usage,
              {.what = "unknown implementation of attention",
               .got = name,
               .hint = "did you mean " + nearest(name, names) + "?"});
}

std::vector<Attention> available_attention() {
  if (!compat::has_fused_attention()) return {Attention::eager};
  return {Attention::eager, Attention::sdpa};
}

Attention resolve(Attention attention, at::Device device, at::ScalarType type, double dropout) {
  if (!compat::has_fused_attention()) return Attention::eager;
  if (attention != Attention::automatic) return attention;
  const bool is_eager = device.is_cpu() && (c10::elementSize(type) == 2 || dropout > 0);
  return is_eager ? Attention::eager : Attention::sdpa;
}

at::Tensor causal_self_attention(const at::Tensor& qkv, int64_t heads, double dropout,
                                 Attention attention, const std::optional<EqualPart>& part) {
  // The masks of parts are keyed.
  if (attention == Attention::automatic && part && dropout > 0) attention = Attention::eager;
  const bool is_fused =
      resolve(attention, qkv.device(), qkv.scalar_type(), dropout) == Attention::sdpa;
  if (is_fused && part && dropout > 0) {
    throw Error("nn", ErrorKind::usage,
                {.what = "attention with dropout whose heads are cut over ranks",
                 .got = "sdpa, whose masks are not keyed",
                 .expected = "eager",
                 .hint = "model.attn_implementation=eager"});
  }
  if (!is_fused && dropout == 0 && takes_causal_products(qkv)) return causal_products(qkv, heads);
  const int64_t batch = qkv.size(0), length = qkv.size(1), width = qkv.size(2) / 3;
  const auto parts =
      qkv.view({batch, length, 3, heads, width / heads}).permute({2, 0, 3, 1, 4}).unbind(0);
  const at::Tensor mixed =
      is_fused ? compat::fused_causal_attention(parts[0], parts[1], parts[2], dropout)
               : eager_attention(parts[0], parts[1], parts[2], dropout, part);
  return mixed.transpose(1, 2).reshape({batch, length, width});
}

at::Tensor causal_attention(const AttentionHeads& heads, double dropout, Attention attention,
                            const std::optional<EqualPart>& part) {
  const auto& [q, k, v] = heads;
  const int64_t times = q.size(2) / k.size(2);
  const at::Tensor qkv =
      at::stack({q, repeat_heads(k, times), repeat_heads(v, times)}, 2).flatten(2);
  return causal_self_attention(qkv, q.size(2), dropout, attention, part);
}

at::Tensor AttentionModule::attend(AttentionHeads heads, double dropout) const {
  if (core_) return core_(heads, dropout, attention_, part_);
  auto& [q, k, v] = heads;
  if (auto* const cache = KeyValueCache::current()) std::tie(k, v) = cache->extend(*this, k, v);
  if (q.size(1) == k.size(1)) return causal_attention(heads, dropout, attention_, part_);
  const int64_t times = q.size(2) / k.size(2);
  k = repeat_heads(k, times);
  v = repeat_heads(v, times);
  const auto by_head = [](const at::Tensor& x) { return x.transpose(1, 2); };
  const at::Tensor mixed = eager_attention(by_head(q), by_head(k), by_head(v), dropout, part_);
  return mixed.transpose(1, 2).flatten(2);
}

at::Tensor AttentionModule::attend(const at::Tensor& qkv, int64_t heads, double dropout) const {
  if (!KeyValueCache::current() && !core_) {
    return causal_self_attention(qkv, heads, dropout, attention_, part_);
  }
  const auto parts = qkv.view({qkv.size(0), qkv.size(1), 3, heads, -1}).unbind(2);
  return attend({parts[0], parts[1], parts[2]}, dropout);
}

std::vector<AttentionModule*> attention_modules(torch::nn::Module& module) {
  std::vector<AttentionModule*> found;
  module.apply([&](torch::nn::Module& below) {
    if (auto* attention = dynamic_cast<AttentionModule*>(&below)) found.push_back(attention);
  });
  return found;
}

std::vector<double> time_attention(const AttentionShape& shape,
                                   const std::vector<Attention>& attentions) {
  constexpr double kSeconds = 0.3;
  const at::AutoGradMode with_gradients(true);
  const auto part = timed_part(shape);
  const at::Tensor qkv =
      at::full({part.batch, part.length, 3 * part.heads * part.size}, 0.5, part.type)
          .set_requires_grad(true);
  return least_of(take_turns(attentions.size(), kSeconds, [&](size_t candidate) {
    const Stopwatch one;
    causal_self_attention(qkv, part.heads, /*dropout=*/0, attentions[candidate]).sum().backward();
    return one.seconds();
  }));
}

}  // namespace troika::nn
