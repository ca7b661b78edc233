// The progress of a run: counters, times and the latest metrics.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <string>

#include "troika/checkpoint/safetensors.h"

namespace troika::train {

struct TrainProgress {
  int64_t epoch = 0;
  int64_t position = 0;     // samples of the epoch already trained on, over all ranks
  int64_t micro_batch = 0;  // micro-batches since the last optimizer step
  int64_t step = 0;         // optimizer steps
  int64_t rows = 0;         // logged at `step` so far
  int64_t samples = 0;      // trained on so far, over all ranks
  int64_t ended_step = 0;   // the step at the latest end of an epoch
  int64_t validating = 0;   // 1: in a validation; replicas are synchronized already
  double train_seconds = 0;
  double seconds = 0;       // wall time of the whole run when it was saved
  double train_loss = NAN;  // of the previous epoch
  double validation_loss = NAN;
  double validation_accuracy = NAN;
  std::map<std::string, double> metrics;  // the latest values that are the same on all ranks

  // All names begin with "loops.".
  checkpoint::NamedTensors state() const;
  // Throws Error(usage), naming missing entries.
  void load_state(const std::map<std::string, at::Tensor>& state);
};

}  // namespace troika::train
