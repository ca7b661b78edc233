// Dropout (Srivastava et al., JMLR 15, 2014) whose masks are functions of keys (keyed_draws.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "troika/nn/hooked.h"

namespace troika::nn {

// The position of a shard in the whole tensor: elements `offset` to offset + size(dim) of `whole`
// along `dim`, which is not the dimension of samples.
struct ShardOf {
  int64_t dim;
  int64_t offset;
  int64_t whole;
};

// The positions of a shard in the whole tensor: element e of a sample has the number
//   bases[e / run mod bases.size()] + e mod run + e / (run bases.size()) stride
// in the whole sample.
struct MaskPlaces {
  int64_t run;
  std::vector<int64_t> bases;
  int64_t stride;
};

// Returns `input` with each element set to 0 with probability p, 0 <= p < 1, and the others divided
// by 1 - p. If draws of this thread are keyed (keyed_draws.h): dim 0 must hold the same number of
// rows for each sample, otherwise throws Error(usage); masks take no memory, since the backward
// pass recomputes them; and a shard gets its part of the whole tensor's mask. If draws are not
// keyed, calls at::dropout(), whose masks come from LibTorch's default generator, and throws
// Error(usage) for a shard.
at::Tensor dropout(const at::Tensor& input, double p);
at::Tensor dropout(const at::Tensor& input, double p, const ShardOf& shard);
// With a part, `input` is this part of a whole tensor.
at::Tensor dropout(const at::Tensor& input, double p, const std::optional<EqualPart>& part);

// Returns the keys of the thread's next draw, for a part of whole tensors. Throws Error(usage)
// unless draws are keyed (nn::KeyedDraws).
std::vector<int64_t> keys_for_a_part();

// Returns `input`, contiguous, with the mask that dropout() makes from these keys, one for each
// sample (DrawState::next_keys()). Has no graph.
at::Tensor masked_by_keys(const at::Tensor& input, const std::vector<int64_t>& keys, double p,
                          const MaskPlaces& places);

// torch::nn::Dropout with these masks. Returns its input in evaluation mode. On a thread with a
// TokenPart (token_part.h), inputs are [batch, tokens, width], of the tokens of that part, and
// draws must be keyed.
class Dropout : public torch::nn::Module {
 public:
  explicit Dropout(double p) : p_(p) {}
  at::Tensor forward(const at::Tensor& input) const {
    return is_training() ? dropped(input) : input;
  }
  // The inputs are a part of whole tensors from now on; nothing: whole tensors again. With a
  // TokenPart, a part along dim 1 is one of the tokens of that part.
  void use_part(const std::optional<EqualPart>& part) { part_ = part; }

 private:
  at::Tensor dropped(const at::Tensor& input) const;

  const double p_;
  std::optional<EqualPart> part_;
};

}  // namespace troika::nn
