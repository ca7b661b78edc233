// Describes a run before it begins.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace troika::train {

struct RunPlan {
  std::string name;
  std::string model;  // its name in the zoo, or the module's class
  int64_t parameters = 0;
  int64_t trainable = 0;  // trainable parameters
  int64_t training_samples = 0;
  int64_t validation_samples = 0;
  int64_t steps_made = 0;  // before resuming
  int64_t steps = 0;       // of the whole run; 0: a time limit ends it
  int64_t steps_per_epoch = 0;
  int64_t batch = 0;          // samples of a micro-batch over all ranks
  int64_t micro_batches = 1;  // micro-batches of an optimizer step
  int ranks = 1;
  int replicas = 1;  // along the data axis
  int nodes = 1;
  std::string backend;
  std::string device;
  std::string strategy;
  std::string precision;
  // Tensor bytes of each rank in training steps; empty: not predicted.
  std::vector<int64_t> predicted_bytes = {};
  std::string why_not_predicted = {};  // completes "not predicted ..."; empty: unknown
  std::string folder;
};

// Returns a line with the name and a line for each other field, without a final line break.
std::string describe(const RunPlan& plan);

}  // namespace troika::train
