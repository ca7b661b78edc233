// The samples that a rank loads, in training and in exact evaluation.
//
// Pure functions of their arguments. The training loop holds the position in an epoch and counts
// the samples it has trained on, so batches loaded ahead are neither lost nor repeated.
#pragma once

#include <cstdint>
#include <vector>

namespace troika::data {

// One rank of those that share the samples; 0 <= rank < count.
struct RankOf {
  int rank = 0;
  int count = 1;
};

using IndexBatch = std::vector<int64_t>;

// The progress of training: all ranks together have consumed `position` samples of epoch `epoch`.
// It does not depend on ranks or batch size, so training can resume with other values of both.
struct SamplerState {
  int64_t epoch = 0;
  int64_t position = 0;

  bool operator==(const SamplerState&) const = default;
};

// Training order. The samples of an epoch are permutation(size, mix(seed, epoch)), split into
// global batches from the position on; samples that do not fill a global batch at the end of the
// epoch are left out. Each rank takes its contiguous share of each global batch: the batches of all
// ranks, concatenated in rank order, equal the batch of a single process.
class Sampler {
 public:
  struct Options {
    int64_t size = 0;          // of the data set
    int64_t global_batch = 0;  // samples per step, over all ranks
    uint64_t seed = 0;
    RankOf ranks = {};
  };
  // Throws Error(usage) if the global batch is larger than the data set, smaller than the number of
  // ranks or not divisible by it.
  explicit Sampler(const Options& options);

  // Returns the number of global batches left in the epoch of `state`.
  int64_t steps_left(const SamplerState& state) const;

  // Returns this rank's indices for each of them, in order. Throws Error(usage) for a position
  // outside the epoch, e.g. from a state saved with another data set.
  std::vector<IndexBatch> batches(const SamplerState& state) const;

  // Returns the state after `steps` <= steps_left(state) more steps. If then no whole global batch
  // is left, returns the beginning of the next epoch. Call it with steps = 0 for a state saved with
  // a smaller batch.
  SamplerState after(const SamplerState& state, int64_t steps = 1) const;

  // Returns the seed for Dataset::load: different for each epoch, the same on all ranks.
  uint64_t augmentation_seed(int64_t epoch) const;

 private:
  Options options_;
};

// Returns the batches of at most `batch` samples that this rank evaluates: its contiguous share of
// 0 .. size - 1, without padding or repetition. All ranks together cover every sample once. Shares
// differ by at most one sample, so they may differ by one batch, and may be empty.
std::vector<IndexBatch> evaluation_batches(int64_t size, int64_t batch, const RankOf& ranks);

}  // namespace troika::data
