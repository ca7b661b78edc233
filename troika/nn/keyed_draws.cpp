#include "troika/nn/keyed_draws.h"

#include <numeric>
#include <utility>

#include "troika/base/random.h"

namespace troika::nn {

SampleKeys some_samples(int64_t count) {
  SampleKeys keys;
  keys.samples.resize(static_cast<size_t>(count));
  std::iota(keys.samples.begin(), keys.samples.end(), 0);
  return keys;
}

DrawState& DrawState::current() {
  thread_local DrawState state;
  return state;
}

std::vector<int64_t> DrawState::next_keys() {
  if (!keys) return {};
  if (draws.size() <= block) draws.resize(block + 1);
  const uint64_t draw = mix(keys->seed, block, draws[block]++);
  std::vector<int64_t> result;
  result.reserve(keys->samples.size());
  for (const int64_t sample : keys->samples) {
    result.push_back(static_cast<int64_t>(mix(draw, static_cast<uint64_t>(sample))));
  }
  return result;
}

DrawStateGuard::DrawStateGuard(DrawState state)
    : before_(std::exchange(DrawState::current(), std::move(state))) {}

DrawStateGuard::~DrawStateGuard() {
  DrawState::current() = std::move(before_);
}

DrawsOfBlock::DrawsOfBlock(size_t index)
    : before_(std::exchange(DrawState::current().block, index + 1)) {}

}  // namespace troika::nn
