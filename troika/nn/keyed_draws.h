// Counter-based random numbers (Salmon et al., SC 2011). A mask is a function of the seed, the
// sample, the block of the model, the draw within the block and the index of the element. So it
// does not depend on the number of ranks, on gradient accumulation, or on pipeline stages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace troika::nn {

// Keys of the samples in one micro-batch.
struct SampleKeys {
  uint64_t seed = 0;             // a different one for each optimizer step
  std::vector<int64_t> samples;  // sample numbers, in the order of rows
};

// Returns keys of samples 0 to count - 1, for measurements that need only the cost of draws.
SampleKeys some_samples(int64_t count);

// A thread's state for the next draw.
struct DrawState {
  std::shared_ptr<const SampleKeys> keys;  // null: LibTorch's default generator
  size_t block = 0;                        // 0: outside of a Model's blocks; otherwise index + 1
  std::vector<uint32_t> draws;             // number of draws so far, by `block`

  // Returns this thread's state.
  static DrawState& current();

  // Advances to the next draw and returns one key per sample; empty if draws are not keyed.
  std::vector<int64_t> next_keys();
};

// Replaces this thread's state during its lifetime.
class DrawStateGuard {
 public:
  explicit DrawStateGuard(DrawState state);
  ~DrawStateGuard();
  DrawStateGuard(const DrawStateGuard&) = delete;
  DrawStateGuard& operator=(const DrawStateGuard&) = delete;

 private:
  DrawState before_;
};

// Makes this thread's draws keyed during its lifetime.
class KeyedDraws : DrawStateGuard {
 public:
  explicit KeyedDraws(SampleKeys keys)
      : KeyedDraws(std::make_shared<const SampleKeys>(std::move(keys))) {}
  explicit KeyedDraws(std::shared_ptr<const SampleKeys> keys)
      : DrawStateGuard({std::move(keys), 0, {}}) {}
};

// Assigns this thread's draws to a block of a Model during its lifetime.
class DrawsOfBlock {
 public:
  explicit DrawsOfBlock(size_t index);
  ~DrawsOfBlock() { DrawState::current().block = before_; }
  DrawsOfBlock(const DrawsOfBlock&) = delete;
  DrawsOfBlock& operator=(const DrawsOfBlock&) = delete;

 private:
  const size_t before_;
};

}  // namespace troika::nn
