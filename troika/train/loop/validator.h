// The validations of a run: when they are due, and what follows from their results.
#pragma once

#include <cstdint>

#include "troika/observe/metric_log.h"
#include "troika/train/engine/engine.h"
#include "troika/train/loop/epochs.h"
#include "troika/train/loop/evaluation_loop.h"
#include "troika/train/loop/run_measurements.h"
#include "troika/train/loop/run_setup.h"
#include "troika/train/loop/train_log.h"
#include "troika/train/run/hook_calls.h"
#include "troika/train/run/stop.h"

namespace troika::train {

// The parts of a run that its validations use. They must outlive the validator.
struct ValidatorParts {
  const RunSetup& setup;
  Epochs& epochs;
  RunMeasurements& measured;
  Stop& stop;
  FitContext& context;
  TrainLog& log;
  const HookCalls& hooks;
  Engine& engine;
};

// check_sanity() and validate() are called by all ranks, and block.
class Validator {
 public:
  explicit Validator(const ValidatorParts& parts);

  // Whether validations take place only at the end of each epoch, or not at all.
  bool is_only_at_epoch_ends() const;
  // Returns the number of micro-batches of the epoch until the next validation within it is due, if
  // any; it may be beyond the epoch's end.
  int64_t micro_batches_until_due() const;
  // Whether a validation within the epoch is due after the latest `micro_batches`.
  bool is_due_within_epoch(int64_t micro_batches) const;
  // Whether a validation belongs to the end of the current epoch.
  bool is_due_after_epoch() const;
  // Whether the latest validation judged the weights as they are now.
  bool has_judged_weights() const { return validated_samples_ == parts_.epochs.at().samples; }

  // Validates a few batches and discards the result, to find errors before training. The run does
  // not depend on the result. Throws Error(usage) if a callback monitors a metric that will never
  // be logged.
  void check_sanity();
  // Validates, writes a row, and gives the loss to the learning-rate schedule; then the module is
  // in training mode. Returns whether the validation completed. If not, the run was asked to stop
  // and is to be saved.
  bool validate();

 private:
  EvaluationLoop loop(int64_t batches);

  const ValidatorParts parts_;
  observe::MetricLog log_;
  int64_t validated_samples_ = -1;  // samples trained on at the latest validation
};

}  // namespace troika::train
