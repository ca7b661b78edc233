// Causal self-attention of transformers, by one of the implementations that LibTorch offers.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <vector>

namespace troika::nn {

// How attention is computed. Results differ by rounding alone.
enum class Attention {
  automatic,  // sdpa, but eager on CPUs in 16 bits or with dropout, and where there is no sdpa
  eager,      // products and a softmax; the [length, length] weights of all heads are in memory
  sdpa,       // LibTorch's fused scaled_dot_product_attention, from 2.0 on; its dropout takes masks
              // from LibTorch's default generator, keyed or not
};

// "auto", "eager", "sdpa": Hugging Face's names for `attn_implementation`.
const std::vector<std::string>& attention_names();
const std::string& attention_name(Attention attention);
// Throws Error(usage) for another name.
Attention parse_attention(const std::string& name);

// The implementations that this LibTorch has, without automatic.
std::vector<Attention> available_attention();

// The implementation that is used: resolves automatic, and sdpa where LibTorch has none.
Attention resolve(Attention attention, at::Device device, at::ScalarType type, double dropout);

// softmax(q k^T / sqrt(size)) v of each head, where a position sees itself and those before it.
// `qkv` is [batch, length, 3 * heads * size], as one product makes them; the result is
// [batch, length, heads * size]. `dropout` applies to the softmax.
at::Tensor causal_self_attention(const at::Tensor& qkv, int64_t heads, double dropout,
                                 Attention attention);

// A module that computes causal attention.
class AttentionModule : public torch::nn::Module {
 public:
  Attention attention() const { return attention_; }
  void use(Attention attention) { attention_ = attention; }

 private:
  Attention attention_ = Attention::automatic;
};

// The modules at or below `module` that compute attention.
std::vector<AttentionModule*> attention_modules(torch::nn::Module& module);

// The shapes that causal_self_attention() is called with.
struct AttentionShape {
  int64_t batch = 1;
  int64_t heads = 1;
  int64_t length = 1;
  int64_t size = 1;  // of a head
  at::ScalarType type = at::kFloat;
};

// Seconds of a forward and a backward pass by each of `attentions`, the least of several, taking
// turns, in this thread's number of threads. Takes about half a second at most: of large shapes it
// times a part, fewer heads and at most 2048 positions.
std::vector<double> time_attention(const AttentionShape& shape,
                                   const std::vector<Attention>& attentions);

}  // namespace troika::nn
