#include "troika/train/profile/context_cuts.h"

#include <algorithm>
#include <array>
#include <optional>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/compat/fake_tensors.h"
#include "troika/compat/torch.h"
#include "troika/nn/attention.h"
#include "troika/nn/zoo.h"
#include "troika/parallel/context/context_table.h"
#include "troika/train/profile/counted_work.h"
#include "troika/train/task/task.h"

namespace troika::train {

namespace {

using layout::ContextCut;

constexpr int kContextRanks = 2;

// Returns the block that embeds the tokens; nothing if the model has no table or no attention.
std::optional<size_t> block_of_tokens(const TrainOptions& options) {
  const compat::FakeTensorGuard no_memory;
  Task task(nn::make_model(options.model));
  const auto table = task.split_table();
  if (table.empty() || nn::attention_modules(task.module()).empty()) return std::nullopt;
  return parallel::require_context(task.blocks(), table, kContextRanks,
                                   layout::ContextMethod::ring);
}

// `part` is the work of one of two ranks.
ContextCut context_cut(const BlockWork& whole, const BlockWork& part, int64_t tokens) {
  const auto& attention = whole.attention;
  // A backward pass takes about twice the FLOPs of the forward pass.
  constexpr double kPasses = 3;
  // Queries, keys, values and the result.
  constexpr int kExchanged = 4;
  const double cost = whole.cost();
  // An embedding has no FLOPs, and writes its outputs.
  const double time_share =
      std::max(divided_share(cost, part.cost(), kContextRanks),
               divided_share(whole.output_bytes, part.output_bytes, kContextRanks));
  return {.tokens = static_cast<int>(tokens),
          .heads = static_cast<int>(attention.heads),
          .time_share = time_share,
          .workspace_share =
              divided_share(whole.memory.workspace, part.memory.workspace, kContextRanks),
          .saved_bytes = kContextRanks * part.memory.saved,
          .attention_share = cost > 0 ? std::min(1.0, kPasses * attention.flops / cost) : 0,
          .pair_bytes = attention.pair_bytes,
          .pair_gradient_bytes = attention.pair_gradient_bytes,
          .exchanges = static_cast<int>(attention.calls) * kExchanged,
          .exchanged_bytes = attention.all_bytes};
}

// The numbers of a cut, and whether there is one.
using ContextNumbers = std::array<double, 11>;

ContextNumbers context_numbers(const ContextCut& cut) {
  return {1,
          static_cast<double>(cut.tokens),
          static_cast<double>(cut.heads),
          cut.time_share,
          cut.workspace_share,
          cut.saved_bytes,
          cut.attention_share,
          cut.pair_bytes,
          cut.pair_gradient_bytes,
          static_cast<double>(cut.exchanges),
          cut.exchanged_bytes};
}

ContextCut context_from(const double* numbers) {
  return {.tokens = static_cast<int>(numbers[1]),
          .heads = static_cast<int>(numbers[2]),
          .time_share = numbers[3],
          .workspace_share = numbers[4],
          .saved_bytes = numbers[5],
          .attention_share = numbers[6],
          .pair_bytes = numbers[7],
          .pair_gradient_bytes = numbers[8],
          .exchanges = static_cast<int>(numbers[9]),
          .exchanged_bytes = numbers[10]};
}

void count_cuts(at::Tensor& rows, const TrainOptions& options, const std::string& attention,
                const data::Dataset& dataset, const nn::NumericPrecision& precision,
                int64_t samples) {
  const CountedBatches batches(dataset, samples);
  auto on_axis = options;
  on_axis.model.attn_implementation = attention;
  const auto embedding = block_of_tokens(on_axis);
  if (!embedding) return;
  const auto whole = work_of_rank(options, batches, precision, {});
  const int64_t tokens = whole[*embedding].tokens;
  if (tokens == 0 || tokens % (2 * kContextRanks) != 0) return;
  const auto part = work_of_rank(on_axis, batches, precision, {.context = kContextRanks});
  for (size_t i = 0; i < whole.size(); ++i) {
    std::ranges::copy(context_numbers(context_cut(whole[i], part[i], tokens)),
                      rows.data_ptr<double>() + i * ContextNumbers().size());
  }
}

}  // namespace

void add_context_cuts(std::vector<layout::ProfiledBlock>& blocks, const TrainOptions& options,
                      const std::string& attention, const data::Dataset& dataset,
                      const nn::NumericPrecision& precision, int64_t samples,
                      const comm::Group& group) {
  constexpr const char* kLabel = "tokens of blocks";
  auto all = at::zeros(
      {static_cast<int64_t>(blocks.size()), static_cast<int64_t>(ContextNumbers().size())},
      at::kDouble);
  group.barrier({.label = kLabel});
  if (group.rank() == 0) {
    try {
      count_cuts(all, options, attention, dataset, precision, samples);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::usage) throw;
      // A profile without cuts is still one of the model on whole ranks.
      all.zero_();
      log::info("the profile has no cuts for a context axis: {}", error.what());
    }
  }
  group.broadcast(all, 0, {.label = kLabel}).wait();
  const double* const rows = all.data_ptr<double>();
  for (size_t i = 0; i < blocks.size(); ++i) {
    const double* const own = rows + i * ContextNumbers().size();
    if (own[0] != 0) blocks[i].context = context_from(own);
  }
}

}  // namespace troika::train
