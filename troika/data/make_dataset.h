// Data sets by name, for configuration files.
#pragma once

#include <memory>
#include <string>

#include "troika/data/dataset.h"

namespace troika::data {

struct DataOptions {
  std::string name = "shapes";          // one of dataset_names()
  std::string path = {};                // folder of cifar10, cifar100 and idx
  std::vector<std::string> files = {};  // of text, in order
  // At most this many samples, the first ones; 0: all (10 000 and 2 000 of those that are
  // generated).
  int64_t train_samples = 0;
  int64_t validation_samples = 0;
  uint64_t seed = 0;                 // of shapes, shape_masks and captions
  int64_t frames = 16;               // of a video of captions
  int64_t feature_width = 64;        // of captions: features of a frame
  int64_t context = 128;             // of text: bytes that a sample predicts
  double validation_fraction = 0.1;  // of text: the share held out at its end
  bool augment = true;               // whether the training split may be augmented
};

// Returns "shapes", "shape_masks", "captions", "cifar10", "cifar100", "idx" and "text".
const std::vector<std::string>& dataset_names();

// Reads or renders the whole split into memory. The validation split ignores augmentation seeds,
// and so does the training split without `augment`. Throws Error(usage) for an unknown name, naming
// the nearest known one, for an option out of range, and for files that are missing or wrong.
std::unique_ptr<Dataset> make_dataset(const DataOptions& options, Split split);

// Returns the size of make_dataset()'s result, without rendering images. Throws the same errors,
// except for the sizes of generated samples.
int64_t count_samples(const DataOptions& options, Split split);

}  // namespace troika::data
