#include "troika/data/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "troika/base/error.h"
#include "troika/base/random.h"

namespace troika::data {

namespace {

[[noreturn]] void fail(std::string what, int64_t got, std::string expected) {
  throw Error(
      "data", ErrorKind::usage,
      {.what = std::move(what), .got = std::to_string(got), .expected = std::move(expected)});
}

void check_ranks(const RankOf& ranks) {
  TROIKA_CHECK(0 <= ranks.rank && ranks.rank < ranks.count,
               fmt::format("rank {} of {}", ranks.rank, ranks.count));
}

}  // namespace

Sampler::Sampler(const Options& options) : options_(options) {
  check_ranks(options.ranks);
  const int64_t global = options.global_batch;
  const int64_t ranks = options.ranks.count;
  if (global < ranks) {
    fail("global batch is smaller than the number of ranks", global, fmt::format(">= {}", ranks));
  }
  if (global % ranks != 0) {
    fail("global batch does not divide among the ranks", global,
         fmt::format("a multiple of {}", ranks));
  }
  if (global > options.size) {
    fail("global batch is larger than the training set", global,
         fmt::format("<= {}", options.size));
  }
}

int64_t Sampler::steps_left(const SamplerState& state) const {
  if (state.epoch < 0) fail("epoch of the sampler", state.epoch, ">= 0");
  if (state.position < 0 || state.position > options_.size) {
    fail("position of the sampler in its epoch", state.position,
         fmt::format("0 to {}, the size of the training set", options_.size));
  }
  return (options_.size - state.position) / options_.global_batch;
}

std::vector<IndexBatch> Sampler::batches(const SamplerState& state) const {
  std::vector<IndexBatch> batches(static_cast<size_t>(steps_left(state)));
  const auto order =
      permutation(options_.size, mix(options_.seed, static_cast<uint64_t>(state.epoch)));
  const int64_t share = options_.global_batch / options_.ranks.count;
  auto begin = order.begin() + state.position + options_.ranks.rank * share;
  for (auto& batch : batches) {
    batch.assign(begin, begin + share);
    begin += options_.global_batch;
  }
  return batches;
}

SamplerState Sampler::after(const SamplerState& state, int64_t steps) const {
  TROIKA_CHECK(0 <= steps && steps <= steps_left(state),
               fmt::format("{} steps of {} left", steps, steps_left(state)));
  if (steps == steps_left(state)) return {.epoch = state.epoch + 1, .position = 0};
  return {.epoch = state.epoch, .position = state.position + steps * options_.global_batch};
}

uint64_t Sampler::augmentation_seed(int64_t epoch) const {
  // The third word makes it different from the seed of the order.
  return mix(options_.seed, static_cast<uint64_t>(epoch), 1);
}

std::vector<IndexBatch> evaluation_batches(int64_t size, int64_t batch, const RankOf& ranks) {
  check_ranks(ranks);
  if (batch < 1) fail("evaluation batch", batch, ">= 1");
  const int64_t begin = size * ranks.rank / ranks.count;
  const int64_t end = size * (ranks.rank + 1) / ranks.count;
  std::vector<IndexBatch> batches;
  for (int64_t first = begin; first < end; first += batch) {
    auto& indices = batches.emplace_back(static_cast<size_t>(std::min(batch, end - first)));
    std::iota(indices.begin(), indices.end(), first);
  }
  return batches;
}

}  // namespace troika::data
