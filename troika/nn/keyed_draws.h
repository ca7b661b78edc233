// Random numbers by key (counter-based: Salmon et al., SC 2011). A mask follows from the seed, the
// sample, the block of the model, the draw within the block and the place of the element: it does
// not depend on ranks, on accumulation, or on where a model is cut.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace troika::nn {

// The samples of one micro-batch.
struct SampleKeys {
  uint64_t seed = 0;             // another one for each optimizer step
  std::vector<int64_t> samples;  // the number of each, in the order of rows
};

// Keys of samples 0 to count - 1, for who asks only what draws cost.
SampleKeys some_samples(int64_t count);

// The state that the next draw of a thread follows from.
struct DrawState {
  std::shared_ptr<const SampleKeys> keys;  // null: LibTorch's default generator
  size_t block = 0;                        // 0: outside of a Model's blocks; else index + 1
  std::vector<uint32_t> draws;             // draws so far, by `block`

  // This thread's.
  static DrawState& current();

  // One key for each sample, for one draw more; none where draws are not keyed.
  std::vector<int64_t> next_keys();
};

// Replaces this thread's state while it lives.
class DrawStateGuard {
 public:
  explicit DrawStateGuard(DrawState state);
  ~DrawStateGuard();
  DrawStateGuard(const DrawStateGuard&) = delete;
  DrawStateGuard& operator=(const DrawStateGuard&) = delete;

 private:
  DrawState before_;
};

// Makes draws in this thread keyed while it lives.
class KeyedDraws : DrawStateGuard {
 public:
  explicit KeyedDraws(SampleKeys keys)
      : KeyedDraws(std::make_shared<const SampleKeys>(std::move(keys))) {}
  explicit KeyedDraws(std::shared_ptr<const SampleKeys> keys)
      : DrawStateGuard({std::move(keys), 0, {}}) {}
};

// While it lives, draws in this thread are those of a block of a Model.
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
