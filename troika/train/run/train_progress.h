// Where a run stands, and what it has counted.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <string>

#include "troika/checkpoint/safetensors.h"

namespace troika::train {

struct TrainProgress {
  int64_t epoch = 0;
  int64_t position = 0;    // samples of the epoch that are trained on, by all ranks
  int64_t pass = 0;        // passes since the last optimizer step
  int64_t step = 0;        // optimizer steps
  int64_t rows = 0;        // logged at `step` so far
  int64_t samples = 0;     // trained on, by all ranks
  int64_t ended_step = 0;  // step at which the latest end of an epoch was gone through
  int64_t validating = 0;  // 1: in a validation, for which the ranks' replicas have agreed
  double train_seconds = 0;
  double seconds = 0;       // wall time of all that belongs to the run, when it was saved
  double train_loss = NAN;  // of the epoch before
  double validation_loss = NAN;
  double validation_accuracy = NAN;
  std::map<std::string, double> metrics;  // the latest that are the same on all ranks

  // Names begin with "loops.".
  checkpoint::NamedTensors state() const;
  // Throws Error(usage) naming what is missing.
  void load_state(const std::map<std::string, at::Tensor>& state);
};

}  // namespace troika::train
