#include "troika/plan/memory/block_exchange.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "troika/plan/memory/exchange_memory.h"

namespace troika::plan {

namespace {

constexpr int64_t kPiecesOfBucket = 8, kMostPieces = 32;

// The parameters of blocks, and their indices by block.
std::pair<ExchangedState, std::vector<std::vector<size_t>>> state_of(
    const ExchangedBlocks& blocks) {
  const int64_t most = std::max<int64_t>(1, blocks.bucket_bytes / kPiecesOfBucket);
  ExchangedState state;
  std::vector<std::vector<size_t>> of_blocks;
  for (const double bytes : blocks.parameter_bytes) {
    auto& own = of_blocks.emplace_back();
    const int64_t whole = std::llround(bytes),
                  pieces = std::min((whole + most - 1) / most, kMostPieces);
    for (int64_t i = 0; i < pieces; ++i) {
      own.push_back(state.trained.size());
      state.trained.push_back({.elements = whole * (i + 1) / pieces - whole * i / pieces});
    }
  }
  // As parallel::buckets_of_blocks(): that of the last block is the first.
  state.of_blocks.assign(of_blocks.rbegin(), of_blocks.rend());
  for (size_t i = 0; i < of_blocks.size(); ++i) state.needs.push_back({of_blocks.size() - 1 - i});
  return {std::move(state), std::move(of_blocks)};
}

}  // namespace

double unsharded_bytes(const ExchangedBlocks& blocks) {
  if (blocks.zero_stage < 2 || blocks.parameter_bytes.empty()) return 0;
  auto [state, of_blocks] = state_of(blocks);
  std::vector<size_t> order;
  for (size_t i = state.trained.size(); i > 0; --i) order.push_back(i - 1);
  ExchangeMemory exchange(std::move(state),
                          {.stage = blocks.zero_stage,
                           .ranks = blocks.ranks,
                           .bucket_bytes = blocks.bucket_bytes,
                           .first_bucket_bytes = blocks.first_bucket_bytes,
                           .accumulates = blocks.accumulates,
                           .pads_buckets = false},
                          order);
  exchange.begin_pass();
  int64_t most = 0, shards = 0;
  const auto note = [&] {
    const auto held = exchange.held();
    most = std::max(most, held.buckets + held.gradients - shards);
  };
  {
    // Without whole gradients, only the shards are left.
    auto reduced = exchange;
    reduced.finish();
    shards = reduced.held().gradients;
  }
  const auto last = static_cast<int64_t>(of_blocks.size()) - 1;
  for (int64_t i = 0; i <= last; ++i) {
    exchange.block(static_cast<size_t>(i), i < last ? i + 1 : i - 1);
    note();
  }
  for (int64_t i = last; i >= 0; --i) {
    exchange.block(static_cast<size_t>(i), i - 1);
    note();
    const auto& own = of_blocks[static_cast<size_t>(i)];
    for (auto piece = own.rbegin(); piece != own.rend(); ++piece) {
      exchange.gradient(*piece);
      note();
    }
  }
  return static_cast<double>(most);
}

}  // namespace troika::plan
