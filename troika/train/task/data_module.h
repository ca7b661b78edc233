// The data of a run and the code that prepares it, as Lightning's LightningDataModule, but with
// data sets in place of loaders.
#pragma once

#include "troika/data/dataset.h"
#include "troika/train/options/run_mode.h"

namespace troika::train {

// The trainer calls, in this order: prepare_data(), setup(), the functions of the data sets that
// the mode needs, the mode itself, teardown().
class DataModule {
 public:
  virtual ~DataModule() = default;

  // Downloads and converts. Runs on one rank of each node while all other ranks wait, at most
  // comm.timeout_seconds. The other ranks do not see changes to this object.
  virtual void prepare_data() {}
  // Reads the prepared data. Runs on every rank.
  virtual void setup(RunMode) {}
  // Runs on every rank, also if the mode has failed.
  virtual void teardown(RunMode) {}

  // The data sets must live until teardown(). fit() uses the first two; each other mode uses the
  // one of its name. Each throws Error(usage) unless overridden.
  virtual const data::Dataset& train_dataset();
  virtual const data::Dataset& val_dataset();
  virtual const data::Dataset& test_dataset();
  virtual const data::Dataset& predict_dataset();
};

}  // namespace troika::train
