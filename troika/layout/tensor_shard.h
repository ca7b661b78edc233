// The profile of one rank of a tensor axis.
#pragma once

#include "troika/layout/profile.h"

namespace troika::layout {

// Returns the profile of the blocks as one of `ranks` ranks of a tensor axis computes them: times,
// parameters and bytes by TensorCut, without the time of the sums over ranks. With sequence
// parallelism (Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.2), a rank also has 1/ranks
// of the tokens between the cut layers. The result's blocks keep their `tensor`, whose `sum_bytes`
// are those of whole tensors. For one rank without sequence parallelism, returns the profile.
// Throws Error(usage) for a profile without a cut block, for a block whose units `ranks` does not
// divide, and for sequence parallelism on one rank.
Profile tensor_shard(const Profile& profile, int ranks, bool sequence_parallel);

}  // namespace troika::layout
