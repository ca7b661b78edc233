#include "troika/layout/tensor_shard.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "troika/layout/errors/refuse.h"

namespace troika::layout {

namespace {

bool divides(int ranks, int count) {
  return count % ranks == 0;  // also 0: any number of ranks
}

bool has_cut(const Profile& profile) {
  return std::ranges::any_of(profile.blocks,
                             [](const ProfiledBlock& block) { return block.tensor.has_value(); });
}

// The share of a block that a rank has if the ranks divide the share `divided` of it.
double left_of(double divided, int ranks) {
  return 1 - divided + divided / ranks;
}

// A rank has its share of the heads, and of their keys and values.
void shard_attention(ContextCut& cut, int ranks, double time) {
  cut.attention_share = time > 0 ? std::min(1.0, cut.attention_share / ranks / time) : 0;
  cut.pair_bytes /= ranks;
  cut.pair_gradient_bytes /= ranks;
  cut.exchanged_bytes /= ranks;
}

// Returns what one of `ranks` ranks has, if one rank alone has `whole` and one of `counted` has
// `part`. The bytes that are not divided between these stay, with the tensors of sums.
double scaled(double whole, double part, int counted, int ranks) {
  if (part == 0) return 0;
  const double divided = std::clamp((1 - part / whole) * counted / (counted - 1), 0.0, 1.0);
  return part * left_of(divided, ranks) / left_of(divided, counted);
}

void take_counted(ProfiledBlock& block, const RankBytes& part, int counted, int ranks) {
  const auto take = [&](double& whole, double of_part) {
    whole = scaled(whole, of_part, counted, ranks);
  };
  auto& own = block.in_stage;
  take(block.saved_bytes, part.saved_bytes);
  take(block.workspace_bytes, part.workspace_bytes);
  take(own.sent_workspace_bytes, part.sent_workspace_bytes);
  take(own.weight_workspace_bytes, part.weight_workspace_bytes);
  take(own.weight_input_bytes, part.weight_input_bytes);
  take(own.weight_output_bytes, part.weight_output_bytes);
  take(own.weight_gradient_bytes, part.weight_gradient_bytes);
  take(own.input_workspace_bytes, part.input_workspace_bytes);
  own.weight_saved_share = part.weight_saved_share;
}

void take_shares(ProfiledBlock& block, double saved, int ranks, bool sequence_parallel) {
  auto& own = block.in_stage;
  block.saved_bytes *= saved;
  block.workspace_bytes *= saved;
  for (const auto bytes :
       {&BlockInStage::sent_workspace_bytes, &BlockInStage::weight_workspace_bytes,
        &BlockInStage::weight_gradient_bytes, &BlockInStage::input_workspace_bytes}) {
    own.*bytes *= saved;
  }
  if (block.tensor->cuts_output || sequence_parallel) own.weight_output_bytes /= ranks;
  if (sequence_parallel) own.weight_input_bytes /= ranks;
}

// Sets the bytes of a block's passes.
void cut_bytes(ProfiledBlock& block, int ranks, bool sequence_parallel) {
  const auto& cut = *block.tensor;
  const double before = block.saved_bytes;
  if (cut.counted_ranks > 1) {
    take_counted(block, sequence_parallel ? cut.of_rank_with_tokens : cut.of_rank,
                 cut.counted_ranks, ranks);
  } else {
    const double divided = cut.saved_share + (sequence_parallel ? cut.token_saved_share : 0);
    take_shares(block, left_of(divided, ranks), ranks, sequence_parallel);
  }
  // Other blocks keep the state of the generator, which is not cut.
  if (block.has_output_layer && before > 0) {
    block.in_stage.recomputed_saved_bytes *= block.saved_bytes / before;
  }
}

void shard(ProfiledBlock& block, int ranks, bool sequence_parallel) {
  const auto& cut = block.tensor;
  if (!cut) return;
  const auto require = [&](int count, const char* what, const char* unit) {
    if (divides(ranks, count)) return;
    refuse(fmt::format("block {} cannot be cut over the tensor axis", block.name),
           fmt::format("{} {}{}, and {} ranks", count, unit, what, ranks),
           fmt::format("a multiple of {} {}", ranks, unit));
  };
  require(cut->units, ", such as heads", "units");
  if (sequence_parallel) require(cut->tokens, "", "tokens");
  const auto left = [&](double share, double of_tokens) {
    return left_of(share + (sequence_parallel ? of_tokens : 0), ranks);
  };
  const double time = left(cut->time_share, cut->token_time_share);
  block.forward *= time;
  block.backward_input *= time;
  block.backward_weight *= time;
  if (block.context) shard_attention(*block.context, ranks, time);
  cut_bytes(block, ranks, sequence_parallel);
  block.parameter_bytes *= left(cut->parameter_share, 0);
  block.in_stage.fixed_bytes *= left(cut->parameter_share, 0);
  block.in_stage.borrowed_bytes *= left(cut->parameter_share, 0);
  // With sequence parallelism, blocks exchange tokens.
  if (cut->cuts_output || sequence_parallel) block.output_bytes /= ranks;
  const auto of_rank = [&](double share) {
    return time > 0 ? std::min(1.0, share / ranks / time) : 0;
  };
  block.tensor->weight_share_beside_sums = of_rank(cut->weight_share_beside_sums);
  block.tensor->input_share_beside_gathers = of_rank(cut->input_share_beside_gathers);
}

}  // namespace

Profile tensor_shard(const Profile& profile, int ranks, bool sequence_parallel) {
  if (ranks == 1) {
    if (sequence_parallel) refuse("sequence parallelism", "1 rank", "a tensor axis of 2 or more");
    return profile;
  }
  if (!has_cut(profile)) {
    refuse(fmt::format("block {} and all others of the profile cannot be cut over the tensor axis",
                       profile.blocks.front().name),
           fmt::format("no key tensor, and {} ranks", ranks),
           "blocks that say which part of them the axis cuts (docs/plan.md#tensor-axis)");
  }
  Profile own = profile;
  for (auto& block : own.blocks) shard(block, ranks, sequence_parallel);
  return own;
}

std::vector<TensorTurn> forward_turns(const ProfiledBlock& block, int ranks,
                                      bool sequence_parallel) {
  const auto& cut = block.tensor;
  if (!cut || cut->sum_bytes == 0) return {};
  std::vector<TensorTurn> turns;
  const double part = block.forward / cut->forward_sums;
  const double left = left_of(cut->time_share + cut->token_time_share, ranks);
  const double tokens = left > 0 ? part * cut->token_time_share / ranks / left : 0;
  for (int i = 0; i < cut->forward_sums; ++i) {
    if (sequence_parallel) {
      turns.push_back({tokens, TensorCollective::gather, cut->sum_bytes});
      turns.push_back({part - tokens, TensorCollective::sum_of_tokens, cut->sum_bytes});
    } else {
      turns.push_back({part, TensorCollective::sum, cut->sum_bytes});
    }
  }
  return turns;
}

double seconds_beside_sum(const ProfiledBlock& block) {
  const auto& cut = block.tensor;
  if (!cut || cut->backward_sums == 0) return 0;
  return cut->weight_share_beside_sums * block.backward_weight / cut->backward_sums;
}

double seconds_beside_gather(const ProfiledBlock& block) {
  const auto& cut = block.tensor;
  if (!cut || cut->backward_gathers == 0) return 0;
  return cut->input_share_beside_gathers * block.backward_input / cut->backward_gathers;
}

std::vector<int> tensor_ranks(const Profile& profile, int most) {
  std::vector<int> all;
  if (!has_cut(profile)) return all;
  int units = 0;
  for (const auto& block : profile.blocks) {
    if (block.tensor) units = std::gcd(units, block.tensor->units);
  }
  for (int ranks = 2; ranks <= most; ++ranks) {
    const bool is_power = (ranks & (ranks - 1)) == 0;
    if (units > 0 ? divides(ranks, units) : is_power) all.push_back(ranks);
  }
  return all;
}

bool may_cut_tokens(const Profile& profile, int ranks) {
  bool gains = false;
  for (const auto& block : profile.blocks) {
    if (!block.tensor) continue;
    if (!divides(ranks, block.tensor->tokens)) return false;
    gains = gains || block.tensor->token_time_share > 0 || block.tensor->token_saved_share > 0;
  }
  return gains;
}

}  // namespace troika::layout
