// The data of a run together with how they come to be: Lightning's, of data sets.
#pragma once

#include "troika/data/dataset.h"
#include "troika/train/options/run_mode.h"

namespace troika::train {

// For each call of the trainer, in this order: prepare_data(), setup(), the data sets that its
// mode needs, the mode, teardown().
class DataModule {
 public:
  virtual ~DataModule() = default;

  // On one rank of each node, while all others wait, at most comm.timeout_seconds: to download and
  // convert. What it leaves in memory the other ranks do not see.
  virtual void prepare_data() {}
  // On every rank: to read what was prepared.
  virtual void setup(RunMode) {}
  // On every rank, also where the mode has failed.
  virtual void teardown(RunMode) {}

  // Must live until teardown(). fit() takes the first two, the others the one of their name. Each
  // throws Error(usage) unless overridden.
  virtual const data::Dataset& train_dataset();
  virtual const data::Dataset& val_dataset();
  virtual const data::Dataset& test_dataset();
  virtual const data::Dataset& predict_dataset();
};

}  // namespace troika::train
