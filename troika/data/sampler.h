// Which samples a rank loads: in training, and in exact evaluation.
//
// Pure functions of their arguments: the position in an epoch belongs to the training loop, which
// counts what it has trained on, so that batches loaded ahead can neither be lost nor repeated.
#pragma once

#include <cstdint>
#include <vector>

namespace troika::data {

// One rank among those that share the samples; 0 <= rank < count.
struct RankOf {
  int rank = 0;
  int count = 1;
};

using IndexBatch = std::vector<int64_t>;

// Where training stands: `position` samples of epoch `epoch` are consumed, by all ranks together.
// It says nothing of ranks or batch size, so training resumes from it with any of both.
struct SamplerState {
  int64_t epoch = 0;
  int64_t position = 0;

  bool operator==(const SamplerState&) const = default;
};

// Training order. The samples of an epoch are permutation(size, mix(seed, epoch)), cut into global
// batches from the position on; what does not fill a global batch at the end of the epoch is left
// out. Each rank takes its contiguous share of each global batch, so that the batches of all ranks,
// concatenated in rank order, are the batch one process alone would take.
class Sampler {
 public:
  struct Options {
    int64_t size = 0;          // of the data set
    int64_t global_batch = 0;  // samples a step, over all ranks
    uint64_t seed = 0;
    RankOf ranks = {};
  };
  // Throws Error(usage) when the global batch is larger than the data set, smaller than the number
  // of ranks or not divisible by it.
  explicit Sampler(const Options& options);

  // Global batches left in the epoch of `state`.
  int64_t steps_left(const SamplerState& state) const;

  // This rank's indices for each of them, in order. Throws Error(usage) for a position outside the
  // epoch, as in a state saved with another data set.
  std::vector<IndexBatch> batches(const SamplerState& state) const;

  // The state `steps` <= steps_left(state) steps later. Where no whole global batch is left it is
  // the beginning of the next epoch, also for steps = 0: how to settle a state saved with a smaller
  // batch.
  SamplerState after(const SamplerState& state, int64_t steps = 1) const;

  // For Dataset::load: another seed each epoch, the same on all ranks.
  uint64_t augmentation_seed(int64_t epoch) const;

 private:
  Options options_;
};

// The batches of at most `batch` samples that this rank evaluates: its contiguous share of
// 0 .. size - 1, without padding or repetition. The shares of all ranks together are every sample
// once and differ by at most one sample; they may differ by one batch, and be empty.
std::vector<IndexBatch> evaluation_batches(int64_t size, int64_t batch, const RankOf& ranks);

}  // namespace troika::data
