// A data set: numbered samples that can be loaded in any order, by any thread.
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

// Immutable once it is made: all const functions may be called from several threads at once.
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

  // The name that make_dataset() has for it; empty: a data set of a program's own.
  const std::string& name() const { return name_; }
  void set_name(std::string name) { name_ = std::move(name); }

 private:
  std::string name_;
};

}  // namespace troika::data
