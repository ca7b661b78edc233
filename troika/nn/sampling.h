// Text from language models, token by token.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace troika::nn {

class Model;

// How a token is chosen from logits. Filters apply in this order, as in Hugging Face's generate().
struct SamplingOptions {
  double temperature = 1;  // logits are divided by it; 0: always the first most likely token
  int64_t top_k = 0;       // only the k most likely tokens, and those as likely as the last; 0: all
  // Only the fewest most likely tokens whose probabilities sum to at least this; 1: all.
  double top_p = 1;
};

// Returns logits [tokens], in at least float32, with -infinity for tokens that may not be chosen.
// Throws Error(usage) for options out of range.
at::Tensor filtered_logits(const at::Tensor& logits, const SamplingOptions& options);

// Returns a token drawn from the softmax of filtered_logits(), from LibTorch's default generator.
int64_t choose_token(const at::Tensor& logits, const SamplingOptions& options);

// Continues `tokens`, at least one, by `count` tokens, and passes each to `give` as soon as it is
// chosen. The model takes Long [1, length <= context] and gives logits [1, length, tokens]; it
// should be in evaluation mode. Keys and values are kept between tokens (KeyValueCache), so a token
// costs one forward pass of one position. When the text fills the context, the model reads its last
// context / 2 tokens again, and continues from them. Runs without gradients on this thread.
void continue_text(Model& model, int64_t context, std::vector<int64_t> tokens, int64_t count,
                   const SamplingOptions& options, const std::function<void(int64_t)>& give);

}  // namespace troika::nn
