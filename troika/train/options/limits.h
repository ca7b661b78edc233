// The limits of a run: how much of its data it uses, when it validates, and when it ends.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "troika/data/loader.h"
#include "troika/train/options/options.h"
#include "troika/train/options/run_mode.h"

namespace troika::train {

// Returns the number of batches that `text` asks for: a count such as "10", or a fraction of
// `available` such as "0.1", rounded down ("1.0" means all). Throws Error(usage), naming `option`,
// for other text and for a fraction above 0 that yields no batch.
int64_t batches_of(const std::string& option, const std::string& text, int64_t available);

// Converts "DD:HH:MM:SS" to seconds; infinity for empty text. Throws Error(usage) naming `option`.
double seconds_of(const std::string& option, const std::string& text);

// The number of global batches of a data set that the limit of `mode` asks for. `mode` must not be
// fit.
int64_t evaluated_batches(const TrainOptions& options, RunMode mode, int64_t samples,
                          int64_t global_batch);

struct Limits {
  int64_t micro_batches;       // micro-batches of an epoch
  int64_t validation_batches;  // global batches of one validation
  int64_t validation_every;    // micro-batches; `micro_batches` means at the end of each epoch only
  int64_t sanity_batches;      // global batches validated before training
};

// Whether trainer.overfit_batches is set.
bool overfits(const TrainOptions& options);

// Throws Error(usage), naming the responsible option, unless the global batch divides evenly among
// the ranks and `samples` samples of training data fill at least one global batch.
void require_batch(const TrainOptions& options, int ranks, int64_t samples);

// Computes the limits for `micro_batches` and `validation_batches` whole global batches of training
// and validation data.
Limits make_limits(const TrainOptions& options, int64_t micro_batches, int64_t validation_batches);

// The limits that a run has reached after `epochs` complete epochs and `steps` optimizer steps, for
// example "trainer.max_steps = 30".
std::vector<std::string> reached_limits(const TrainOptions& options, int64_t epochs, int64_t steps);

// Whether trainer.max_epochs = 0 stands for the default number of epochs because no other limit
// ends the run.
bool takes_default_epochs(const TrainOptions& options);
// Replaces trainer.max_epochs = 0 by the number that it stands for.
TrainOptions with_default_epochs(TrainOptions options);

// Applies trainer.fast_dev_run: limits each loop to this number of batches, the run to one epoch,
// and turns off loggers, checkpoints, early stopping, SWA and the sanity check.
TrainOptions with_fast_dev_run(TrainOptions options);

// The samples of a micro-batch over `ranks` ranks, from data.batch_size or data.global_batch_size.
int64_t global_batch(const TrainOptions& options, int ranks);

data::LoaderOptions loader_options(const TrainOptions& options, c10::DeviceType device);

}  // namespace troika::train
