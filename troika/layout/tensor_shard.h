// The profile of one rank of a tensor axis.
#pragma once

#include <vector>

#include "troika/layout/profile.h"

namespace troika::layout {

// Returns the profile of the blocks as one of `ranks` ranks of a tensor axis computes them: times,
// parameters and bytes by TensorCut, without the time of the sums over ranks. With sequence
// parallelism (Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.2), a rank also has 1/ranks
// of the tokens between the cut layers. The result's blocks keep their `tensor`, whose `sum_bytes`
// are those of whole tensors, and their `context` is that of a rank's heads. For one rank without
// sequence parallelism, returns the profile. Throws Error(usage) for a profile without a cut block,
// for a block whose units, or with sequence parallelism whose tokens, `ranks` does not divide, and
// for sequence parallelism on one rank.
Profile tensor_shard(const Profile& profile, int ranks, bool sequence_parallel);

enum class TensorCollective { sum, gather, sum_of_tokens };

// A collective over the tensor axis in a forward pass, and what a rank computes before it, since
// the one before.
struct TensorTurn {
  double seconds = 0;
  TensorCollective kind = TensorCollective::sum;
  double bytes = 0;  // of the whole tensor

  bool operator==(const TensorTurn&) const = default;
};

// Returns the collectives of a block's forward pass on so many ranks, in order; `block` is one of
// tensor_shard(). Each ends an equal part of the block. With sequence parallelism, a part first
// computes its tokens (TensorCut::token_time_share), gathers those of all ranks, computes the rest,
// and sums each rank's tokens. Empty, and without the block's time, if the block has no sums.
std::vector<TensorTurn> forward_turns(const ProfiledBlock& block, int ranks,
                                      bool sequence_parallel);

// Return the seconds that a rank computes beside each sum of a backward pass in one part, and
// beside each gather of sequence parallelism (docs/tensor-parallelism.md#overlap). `block` is one
// of tensor_shard().
double seconds_beside_sum(const ProfiledBlock& block);
double seconds_beside_gather(const ProfiledBlock& block);

// Returns the numbers of ranks from 2 to `most` that a plan may have on its tensor axis: all that
// divide the units of each block, or the powers of two if no block has units. Empty for a profile
// without a cut block.
std::vector<int> tensor_ranks(const Profile& profile, int most);
// Whether sequence parallelism on so many ranks divides more than the tensor axis alone, and
// tensor_shard() does not refuse it.
bool may_cut_tokens(const Profile& profile, int ranks);

}  // namespace troika::layout
