// How much of its data a run uses, and how often it validates.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "troika/data/loader.h"
#include "troika/train/options/options.h"
#include "troika/train/options/run_mode.h"

namespace troika::train {

// The number of the `available` batches that `text` asks for: a count as "10"; or a share as
// "0.1", rounded down, "1.0" being all. Throws Error(usage), naming `option`, for what is neither,
// and for a share above 0 that gives none.
int64_t batches_of(const std::string& option, const std::string& text, int64_t available);

// Seconds of "DD:HH:MM:SS"; infinity for an empty text. Throws Error(usage) naming `option`.
double seconds_of(const std::string& option, const std::string& text);

// The number of global batches of a data set that the option of `mode`, which is not
// fit, asks for.
int64_t evaluated_batches(const TrainOptions& options, RunMode mode, int64_t samples,
                          int64_t global_batch);

struct Limits {
  int64_t passes;              // of an epoch
  int64_t validation_batches;  // of the global batch's size
  int64_t validation_every;    // passes; those of an epoch: at its end only
  int64_t sanity_batches;      // validated before training
};

// Whether trainer.overfit_batches is on.
bool overfits(const TrainOptions& options);

// Throws Error(usage), naming the option that gave it, unless the global batch divides among the
// ranks and so many samples of training data fill it.
void require_batch(const TrainOptions& options, int ranks, int64_t samples);

// For data of so many whole global batches, and so many of validation.
Limits make_limits(const TrainOptions& options, int64_t passes, int64_t validation_batches);

// The limits that a run has reached with so many complete epochs and optimizer steps, as
// "trainer.max_steps = 30".
std::vector<std::string> reached_limits(const TrainOptions& options, int64_t epochs, int64_t steps);

// Whether trainer.max_epochs = 0 means a number of epochs that nobody chose: nothing else ends the
// run.
bool takes_default_epochs(const TrainOptions& options);
// Replaces trainer.max_epochs = 0 by what it means.
TrainOptions with_default_epochs(TrainOptions options);

// The options that trainer.fast_dev_run stands for: so many batches of each loop, in one
// epoch, without loggers, checkpoints, early stopping, SWA and sanity check.
TrainOptions with_fast_dev_run(TrainOptions options);

// Samples of a micro-batch over `ranks` ranks, from data.batch_size or data.global_batch_size.
int64_t global_batch(const TrainOptions& options, int ranks);

data::LoaderOptions loader_options(const TrainOptions& options);

}  // namespace troika::train
