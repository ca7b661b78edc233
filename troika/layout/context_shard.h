// The profile of one rank of a context axis.
#pragma once

#include <vector>

#include "troika/layout/context_method.h"
#include "troika/layout/profile.h"

namespace troika::layout {

// Returns the profile of the blocks as one of `ranks` ranks of a context axis computes them: times
// and bytes of 1/ranks of the tokens by ContextCut, without the time of messages. The blocks keep
// their `context`, whose bytes of keys, values and exchanges are those of all tokens; the numbers
// of `tensor` are those of a rank's tokens. For one rank, returns the profile. Throws Error(usage)
// for a profile without a block that the axis cuts, for a block whose tokens 2 * ranks does not
// divide, and with all_to_all whose heads `ranks` does not divide.
Profile context_shard(const Profile& profile, int ranks,
                      ContextMethod method = ContextMethod::ring);

// Returns the numbers of ranks from 2 to `most` that a plan may have on its context axis, with any
// heads: all whose double divides the tokens of each block, or the powers of two if no block has
// tokens. Empty for a profile without a block that the axis cuts.
std::vector<int> context_ranks(const Profile& profile, int most);

// Messages of all ranks of a context axis at the same time, `count` times one after the other.
struct ContextRounds {
  int count = 0;
  double bytes = 0;   // that a rank sends in each: to the next one, or in parts to all others
  double beside = 0;  // seconds of attention that a rank computes meanwhile

  bool operator==(const ContextRounds&) const = default;
};

// Return the rounds of a block's passes on so many ranks, in the order of the passes; `block` is
// one of context_shard(). All have messages and times above 0. With method ring (Liu et al. 2023,
// arXiv 2310.01889), keys and values go round in both passes, and their gradients in the backward
// pass until they are home, the last time beside nothing.
std::vector<ContextRounds> forward_rounds(const ProfiledBlock& block, int ranks,
                                          ContextMethod method);
std::vector<ContextRounds> backward_rounds(const ProfiledBlock& block, int ranks,
                                           ContextMethod method);

// Returns the seconds of a message of which `beside` seconds of computing hide the share `overlap`
// (PassesInStep::overlap), as far as both last.
double exposed_seconds(double message, double beside, double overlap);

}  // namespace troika::layout
