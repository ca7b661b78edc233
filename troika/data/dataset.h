// A data set: numbered samples that can be loaded in any order, by any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace troika::data {

enum class Split { train, validation };

// Samples stacked along dim 0, on the CPU.
// Images: inputs float32 [n, channels, height, width], normalised; targets int64 [n].
// Text: inputs int64 [n, context]; targets int64 [n, context], each the byte after its input.
struct Batch {
  at::Tensor inputs;
  at::Tensor targets;

  int64_t size() const { return targets.defined() ? targets.size(0) : 0; }
};

// Immutable after construction: all functions may be called from several threads at once.
class Dataset {
 public:
  virtual ~Dataset() = default;

  // Number of samples.
  virtual int64_t size() const = 0;

  // Loads the samples 0 <= index < size() in the order given; an index outside is a CheckError.
  // A sample's augmentation is drawn from (augmentation_seed, its index) alone, so it is the same
  // whatever batch, worker or rank the sample falls to; without a seed nothing is augmented.
  virtual Batch load(std::span<const int64_t> indices,
                     std::optional<uint64_t> augmentation_seed) const = 0;

  // Classes to tell apart; the size of the vocabulary for text.
  virtual int64_t num_classes() const = 0;

  // Shape of one input, without the batch dim.
  virtual std::vector<int64_t> input_shape() const = 0;
};

}  // namespace troika::data
