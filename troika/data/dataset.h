// A data set: numbered samples that can be loaded in any order, by any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "troika/data/batch.h"

namespace troika::data {

enum class Split { train, validation };

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

  // The two from which `troika train` sizes a model of the zoo. Data sets for modules of a program
  // need neither.
  // Classes to tell apart; the size of the vocabulary for text; 0: there are none, as in
  // regression.
  virtual int64_t num_classes() const { return 0; }
  // Shape of one input, without the batch dim; empty: not told.
  virtual std::vector<int64_t> input_shape() const { return {}; }
};

}  // namespace troika::data
