#include "troika/layout/tensor_shard.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "troika/layout/errors/refuse.h"

namespace troika::layout {

namespace {

void shard(ProfiledBlock& block, int ranks, bool sequence_parallel) {
  const auto& cut = block.tensor;
  if (!cut) return;
  if (cut->units > 0 && cut->units % ranks != 0) {
    refuse(fmt::format("block {} cannot be cut over the tensor axis", block.name),
           fmt::format("{} units, such as heads, and {} ranks", cut->units, ranks),
           fmt::format("a multiple of {} units", ranks));
  }
  const auto left = [&](double share, double of_tokens) {
    const double divided = share + (sequence_parallel ? of_tokens : 0);
    return 1 - divided + divided / ranks;
  };
  const double time = left(cut->time_share, cut->token_time_share);
  block.forward *= time;
  block.backward_input *= time;
  block.backward_weight *= time;
  const double saved = left(cut->saved_share, cut->token_saved_share);
  block.saved_bytes *= saved;
  block.workspace_bytes *= saved;
  block.parameter_bytes *= left(cut->parameter_share, 0);
  // With sequence parallelism, blocks exchange tokens.
  if (cut->cuts_output || sequence_parallel) block.output_bytes /= ranks;
}

}  // namespace

Profile tensor_shard(const Profile& profile, int ranks, bool sequence_parallel) {
  if (ranks == 1) {
    if (sequence_parallel) refuse("sequence parallelism", "1 rank", "a tensor axis of 2 or more");
    return profile;
  }
  const auto is_cut = [](const ProfiledBlock& block) { return block.tensor.has_value(); };
  if (std::ranges::none_of(profile.blocks, is_cut)) {
    refuse(fmt::format("blocks of a profile on a tensor axis of {} ranks", ranks),
           "none with the key tensor",
           "blocks that say which part of them the axis cuts (docs/plan.md#tensor-axis)");
  }
  Profile own = profile;
  for (auto& block : own.blocks) shard(block, ranks, sequence_parallel);
  return own;
}

}  // namespace troika::layout
