#include "troika/parallel/context/head_attention.h"

#include <fmt/format.h>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/parallel/collective_node.h"
#include "troika/parallel/context/sample_parts.h"

namespace troika::parallel {

namespace {

constexpr const char* kHeadExchange = "an all-to-all over the context axis";

at::Tensor exchanged(const at::Tensor& blocks, const comm::Group& axis) {
  const at::Tensor own = blocks.contiguous(), result = at::empty_like(own);
  axis.all_to_all(result, own, {}, {}, {.label = "context axis: heads"});
  return result;
}

// [batch, own tokens, ranks, heads, size] to [batch, tokens, heads, size] of this rank's heads.
at::Tensor all_tokens(const at::Tensor& own, const comm::Group& axis) {
  return in_sample_order(exchanged(own.permute({2, 1, 0, 3, 4}), axis)).transpose(0, 1);
}

at::Tensor all_heads(const at::Tensor& tokens, const comm::Group& axis) {
  return exchanged(in_parts(tokens.transpose(0, 1), axis.size()), axis).permute({2, 1, 0, 3, 4});
}

}  // namespace

void require_divisible_heads(const std::string& what, int64_t heads, int64_t kv_heads, int ranks) {
  const auto refuse = [&](int64_t count, const char* of, const std::string& expected) {
    throw Error("parallel", ErrorKind::usage,
                {.what = what + " cannot be cut by heads over the context axis",
                 .got = fmt::format("{} {}, {} ranks", count, of, ranks),
                 .expected = expected,
                 .hint = "method ring takes any number of heads"});
  };
  if (heads % ranks != 0) refuse(heads, "heads", fmt::format("a multiple of {} heads", ranks));
  if (kv_heads % ranks == 0 || ranks % kv_heads == 0) return;
  refuse(kv_heads, "heads of keys and values", fmt::format("a multiple or a divisor of {}", ranks));
}

at::Tensor head_attention(const nn::AttentionHeads& own, double dropout, nn::Attention attention,
                          const std::optional<nn::EqualPart>& part, const comm::Group& axis) {
  const int ranks = axis.size();
  const int64_t heads = own.queries.size(2), kv_heads = own.keys.size(2);
  require_divisible_heads("attention", heads, kv_heads, ranks);
  const int64_t copies = kv_heads % ranks == 0 ? 1 : ranks / kv_heads;
  const auto by_rank = [&](const at::Tensor& x) { return x.unflatten(2, {ranks, -1}); };
  const auto copied = [&](const at::Tensor& x) {
    return copies == 1 ? x : at::repeat_interleave(x, copies, 2);
  };
  const at::Tensor packed =
      at::cat({by_rank(own.queries), by_rank(copied(own.keys)), by_rank(copied(own.values))}, 3);
  const at::Tensor whole = with_gradient(
      packed, [&](const at::Tensor& x) { return all_tokens(x, axis); },
      [axis](const at::Tensor& gradient) { return all_heads(gradient, axis); }, kHeadExchange);
  const int64_t own_heads = heads / ranks, own_kv_heads = kv_heads * copies / ranks;
  const auto parts = whole.split_with_sizes({own_heads, own_kv_heads, own_kv_heads}, 2);
  const nn::EqualPart of_heads{1, (part ? part->index * ranks : 0) + axis.rank(),
                               (part ? part->count : 1) * ranks};
  const at::Tensor mixed =
      nn::causal_attention({parts[0], parts[1], parts[2]}, dropout, attention, of_heads);
  return with_gradient(
             mixed.unflatten(2, {own_heads, -1}),
             [&](const at::Tensor& x) { return all_heads(x, axis); },
             [axis](const at::Tensor& gradient) { return all_tokens(gradient, axis); },
             kHeadExchange)
      .flatten(2);
}

}  // namespace troika::parallel
