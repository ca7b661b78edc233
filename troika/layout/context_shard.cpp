#include "troika/layout/context_shard.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "troika/layout/errors/refuse.h"

namespace troika::layout {

namespace {

bool cuts_tokens(const Profile& profile) {
  return std::ranges::any_of(profile.blocks,
                             [](const ProfiledBlock& block) { return block.context.has_value(); });
}

[[noreturn]] void refuse_cut(const ProfiledBlock& block, const char* what, int count, int ranks,
                             int multiple) {
  refuse(fmt::format("block {} cannot be cut over the context axis", block.name),
         fmt::format("{} {}, and {} ranks", count, what, ranks),
         fmt::format("a multiple of {} {}", multiple, what));
}

// Cuts the bytes of a BlockInStage or RankBytes whose ranks together save `saved` times as much as
// one process does, and have `workspace` times its workspace each.
template <typename Bytes>
void cut_in_stage(Bytes& bytes, int ranks, double workspace, double saved) {
  bytes.sent_workspace_bytes *= workspace;
  bytes.weight_workspace_bytes *= workspace;
  bytes.input_workspace_bytes *= workspace;
  // The second part of a backward pass needs none of the bytes of attention. Only there do ranks
  // together save other bytes than one process.
  if (saved > 0) bytes.weight_saved_share /= saved;
  bytes.weight_input_bytes /= ranks;
  bytes.weight_output_bytes /= ranks;
  bytes.weight_gradient_bytes /= ranks;
}

void shard_tokens(ProfiledBlock& block, int ranks, ContextMethod method) {
  const auto& cut = block.context;
  if (!cut) return;
  if (cut->tokens % (2 * ranks) != 0) {
    refuse_cut(block, "tokens", cut->tokens, ranks, 2 * ranks);
  }
  if (method == ContextMethod::all_to_all && cut->heads % ranks != 0) {
    refuse_cut(block, "heads", cut->heads, ranks, ranks);
  }
  const auto left = [&](double share) { return 1 - share + share / ranks; };
  for (const auto seconds :
       {&ProfiledBlock::forward, &ProfiledBlock::backward_input, &ProfiledBlock::backward_weight}) {
    block.*seconds *= left(cut->time_share);
  }
  const double workspace = left(cut->workspace_share);
  const double saved = block.saved_bytes > 0 ? cut->saved_bytes / block.saved_bytes : 1;
  block.saved_bytes = cut->saved_bytes / ranks;
  block.output_bytes /= ranks;
  // Other blocks keep the state of the generator, which is not cut.
  if (block.has_output_layer) block.in_stage.recomputed_saved_bytes *= saved / ranks;
  block.workspace_bytes *= workspace;
  cut_in_stage(block.in_stage, ranks, workspace, saved);
  if (!block.tensor) return;
  block.tensor->tokens /= ranks;
  block.tensor->sum_bytes /= ranks;
  for (auto* bytes : {&block.tensor->of_rank, &block.tensor->of_rank_with_tokens}) {
    bytes->saved_bytes *= saved / ranks;
    bytes->workspace_bytes *= workspace;
    cut_in_stage(*bytes, ranks, workspace, saved);
  }
}

void add_rounds(std::vector<ContextRounds>& rounds, const ContextRounds& more) {
  if (more.count > 0 && more.bytes > 0) rounds.push_back(more);
}

// A rank of an all-to-all sends the other ranks' parts of its tokens.
std::vector<ContextRounds> exchange_rounds(const ContextCut& cut, int ranks) {
  std::vector<ContextRounds> rounds;
  if (cut.exchanges == 0) return rounds;
  const double others = (ranks - 1.0) / ranks;
  add_rounds(rounds, {.count = cut.exchanges,
                      .bytes = cut.exchanged_bytes / cut.exchanges / ranks * others});
  return rounds;
}

}  // namespace

Profile context_shard(const Profile& profile, int ranks, ContextMethod method) {
  if (ranks == 1) return profile;
  if (!cuts_tokens(profile)) {
    refuse(fmt::format("block {} and all others of the profile cannot be cut over the context axis",
                       profile.blocks.front().name),
           fmt::format("no key context, and {} ranks", ranks),
           "blocks that say which part of them the axis cuts (docs/plan.md#context-axis)");
  }
  Profile own = profile;
  for (auto& block : own.blocks) shard_tokens(block, ranks, method);
  return own;
}

std::vector<int> context_ranks(const Profile& profile, int most) {
  std::vector<int> all;
  if (!cuts_tokens(profile)) return all;
  int tokens = 0;
  for (const auto& block : profile.blocks) {
    if (block.context) tokens = std::gcd(tokens, block.context->tokens);
  }
  for (int ranks = 2; ranks <= most; ++ranks) {
    const bool is_power = (ranks & (ranks - 1)) == 0;
    if (tokens > 0 ? tokens % (2 * ranks) == 0 : is_power) all.push_back(ranks);
  }
  return all;
}

std::vector<ContextRounds> forward_rounds(const ProfiledBlock& block, int ranks,
                                          ContextMethod method) {
  if (!block.context || ranks == 1) return {};
  const auto& cut = *block.context;
  if (method == ContextMethod::all_to_all) return exchange_rounds(cut, ranks);
  std::vector<ContextRounds> rounds;
  add_rounds(rounds, {.count = ranks - 1,
                      .bytes = cut.pair_bytes / ranks,
                      .beside = cut.attention_share * block.forward / ranks});
  return rounds;
}

std::vector<ContextRounds> backward_rounds(const ProfiledBlock& block, int ranks,
                                           ContextMethod method) {
  if (!block.context || ranks == 1) return {};
  const auto& cut = *block.context;
  if (method == ContextMethod::all_to_all) return exchange_rounds(cut, ranks);
  const double beside = cut.attention_share * block.backward() / ranks;
  const double pairs = cut.pair_bytes / ranks, gradients = cut.pair_gradient_bytes / ranks;
  std::vector<ContextRounds> rounds;
  add_rounds(rounds, {.count = 1, .bytes = pairs, .beside = beside});
  add_rounds(rounds, {.count = ranks - 2, .bytes = pairs + gradients, .beside = beside});
  add_rounds(rounds, {.count = 1, .bytes = gradients, .beside = beside});
  add_rounds(rounds, {.count = 1, .bytes = gradients});
  return rounds;
}

double exposed_seconds(double message, double beside, double overlap) {
  return message - overlap * std::min(message, beside);
}

}  // namespace troika::layout
