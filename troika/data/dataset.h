// A data set: numbered samples that any thread can load in any order.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "troika/data/batch.h"

namespace troika::data {

enum class Split { train, validation };

// Immutable after construction: all const functions may be called from several threads at once.
class Dataset {
 public:
  virtual ~Dataset() = default;

  // Returns the number of samples.
  virtual int64_t size() const = 0;

  // Loads the samples of these indices, 0 <= index < size(), in the given order; throws CheckError
  // for an index outside. A sample's augmentation depends only on (augmentation_seed, index), so it
  // is the same for every batch, worker and rank; without a seed nothing is augmented.
  virtual Batch load(std::span<const int64_t> indices,
                     std::optional<uint64_t> augmentation_seed) const = 0;

  // `troika train` sizes a model of the zoo by num_classes() and the two shapes. Data sets for a
  // program's own modules need none of them.
  // Returns the number of classes, or the size of the vocabulary for text; 0: none, as in
  // regression.
  virtual int64_t num_classes() const { return 0; }
  // Returns the shape of one input, without the batch dimension; empty: unknown.
  virtual std::vector<int64_t> input_shape() const { return {}; }
  // Returns the shape of one target, without the batch dimension; empty: a single class.
  virtual std::vector<int64_t> target_shape() const { return {}; }

  // The data set's name for make_dataset(); empty for a program's own data set.
  const std::string& name() const { return name_; }
  void set_name(std::string name) { name_ = std::move(name); }

 private:
  std::string name_;
};

}  // namespace troika::data
