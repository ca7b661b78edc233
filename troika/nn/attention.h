// Causal self-attention of transformers, by one of the implementations that LibTorch offers.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "troika/nn/hooked.h"

namespace troika::nn {

// How attention is computed. Results differ only by rounding.
enum class Attention {
  automatic,  // sdpa; eager on CPUs in 16 bits or with dropout, and without sdpa in LibTorch
  eager,      // matrix products and a softmax; stores the [length, length] weights of all heads
  sdpa,       // LibTorch's fused scaled_dot_product_attention, from 2.0 on; dropout is not keyed
};

// Returns "auto", "eager", "sdpa": Hugging Face's names for `attn_implementation`.
const std::vector<std::string>& attention_names();
const std::string& attention_name(Attention attention);
// Throws Error(usage) for an unknown name.
Attention parse_attention(const std::string& name);

// Returns the implementations that this LibTorch has, without automatic.
std::vector<Attention> available_attention();

// Returns the implementation that will be used: resolves automatic, and replaces sdpa where
// LibTorch lacks it.
Attention resolve(Attention attention, at::Device device, at::ScalarType type, double dropout);

// Returns softmax(q k^T / sqrt(size)) v of each head; a position attends to itself and to earlier
// ones. `qkv` is [batch, length, 3 * heads * size], the output of one linear layer; the result is
// [batch, length, heads * size]. `dropout` applies to the softmax. With a part, `heads` are that
// part of the heads of a whole layer, and get their part of its mask; dim is ignored.
at::Tensor causal_self_attention(const at::Tensor& qkv, int64_t heads, double dropout,
                                 Attention attention,
                                 const std::optional<EqualPart>& part = std::nullopt);

// Queries [batch, length, heads, size]; keys and values [batch, seen, kv_heads, size]. The queries
// belong to the last `length` of the `seen` positions, and kv_heads divides heads: query head i
// uses head i / (heads / kv_heads) of keys and values (grouped-query attention, Ainslie et al.
// 2023, arXiv 2305.13245).
struct AttentionHeads {
  at::Tensor queries, keys, values;
};

// Returns causal attention of as many queries as keys, [batch, length, heads * size], as
// causal_self_attention() does.
at::Tensor causal_attention(const AttentionHeads& heads, double dropout, Attention attention,
                            const std::optional<EqualPart>& part);

// A module that computes causal attention.
class AttentionModule : public torch::nn::Module {
 public:
  Attention attention() const { return attention_; }
  void use(Attention attention) { attention_ = attention; }
  // The heads are a part of the heads of a whole layer from now on; nothing: all of them again.
  void use_part(const std::optional<EqualPart>& part) { part_ = part; }
  // Calls `core` in place of causal_attention() from now on, for passes on a part of the tokens
  // (TokenPart); null: as before.
  using Core = std::function<at::Tensor(const AttentionHeads&, double dropout, Attention,
                                        const std::optional<EqualPart>& part)>;
  void use_core(Core core) { core_ = std::move(core); }

 protected:
  // Returns causal attention of the heads, [batch, length, heads * size]. On a thread with a
  // KeyValueCache, keys and values are those of the new positions, and the cache adds the others.
  at::Tensor attend(AttentionHeads heads, double dropout) const;
  // The same for heads that one linear layer gave, as causal_self_attention() takes them.
  at::Tensor attend(const at::Tensor& qkv, int64_t heads, double dropout) const;

 private:
  Attention attention_ = Attention::automatic;
  std::optional<EqualPart> part_;
  Core core_;
};

// Returns the modules that compute attention, `module` itself included.
std::vector<AttentionModule*> attention_modules(torch::nn::Module& module);

// A shape of causal_self_attention()'s arguments.
struct AttentionShape {
  int64_t batch = 1;
  int64_t heads = 1;
  int64_t length = 1;
  int64_t size = 1;  // width of a head
  at::ScalarType type = at::kFloat;
};

// Returns the seconds of a forward and a backward pass for each of `attentions`: the minimum of
// several runs, interleaved, with this thread's number of threads. Takes about half a second at
// most: for large shapes it times fewer heads and at most 2048 positions.
std::vector<double> time_attention(const AttentionShape& shape,
                                   const std::vector<Attention>& attentions);

}  // namespace troika::nn
