// The positions of a forward pass's tokens in their samples.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace troika::nn {

// Tokens `first` to first + count - 1 of a sample.
struct Stretch {
  int64_t first;
  int64_t count;

  bool operator==(const Stretch&) const = default;
};

// The part of each sample's tokens that one of `count` ranks computes: the sample is cut into 2
// count chunks of equal length, and part `index` has chunks `index` and 2 count - 1 - index, one
// after the other. So causal attention has as many pairs of tokens for each part (the load
// balancing of context parallelism in Megatron-LM and torchtitan).
struct TokenPart {
  int index = 0;
  int count = 1;

  // Returns the positions of a part of `own` tokens, an even number.
  std::vector<Stretch> stretches(int64_t own) const;

  // Returns the part that this thread's forward pass computes; null: all tokens.
  static const TokenPart* current();
};

// Makes this thread's forward passes compute a part during its lifetime.
class TokenPartGuard {
 public:
  explicit TokenPartGuard(const TokenPart& part);
  ~TokenPartGuard();
  TokenPartGuard(const TokenPartGuard&) = delete;
  TokenPartGuard& operator=(const TokenPartGuard&) = delete;

 private:
  const TokenPart part_;
  const TokenPart* const before_;
};

// Returns the positions of `count` tokens of a forward pass on this thread: behind those of its
// key-value cache, or those of its TokenPart.
std::vector<Stretch> token_positions(int64_t count);
// Returns the most tokens of such a pass whose positions are below `end`.
int64_t most_tokens(int64_t end);

// Returns the rows of a table, [positions, ...], for these positions.
at::Tensor rows_at(const at::Tensor& table, const std::vector<Stretch>& positions);

}  // namespace troika::nn
