#include "troika/train/options/callback_options.h"

#include "troika/base/config.h"

namespace troika::train {

using config::at_least;
using config::count_from;
using config::from_to_below;
using config::number_or_share;
using config::one_of;
using config::some_of;

void add_options(config::Table& table, ModelCheckpointOptions& options) {
  table.add("checkpoint.enabled", &options.enabled,
            "write checkpoints; a run that is asked to stop writes one in any case");
  table.add("checkpoint.every_n_epochs", &options.every_n_epochs,
            "write a checkpoint every N epochs; 0: none at the ends of epochs, except that of "
            "save_last at the end of the run",
            count_from(0));
  table.add("checkpoint.every_n_train_steps", &options.every_n_train_steps,
            "also write a checkpoint every N optimizer steps; 0: none", count_from(0));
  table.add("checkpoint.async", &options.async,
            "write checkpoints during training, from a copy of the state in memory, one at a time; "
            "auto: true for pipelines without flushes, whose stages do not wait for each other",
            one_of({"auto", "true", "false"}));
  table.add("checkpoint.weights_only", &options.weights_only,
            "write only the weights, from which no run can resume; a run that is asked to stop "
            "writes its full state");
  table.add("checkpoint.train_time_interval", &options.train_time_interval,
            "also write a checkpoint after this time, DD:HH:MM:SS; empty: none");
  table.add("checkpoint.monitor", &options.monitor,
            "metric by which checkpoints are compared, for example validation/loss; empty: later "
            "ones are better");
  table.add("checkpoint.mode", &options.mode,
            "min: smaller values of the metric are better; max: larger values are",
            one_of({"min", "max"}));
  table.add("checkpoint.save_top_k", &options.save_top_k,
            "number of best checkpoints to keep; -1: all", count_from(-1));
  table.add("checkpoint.save_last", &options.save_last,
            "true: also write and keep the latest checkpoint; false: write it only if it is among "
            "the best; link: as false, unless save_top_k is 0",
            one_of({"true", "false", "link"}));
  table.add("checkpoint.save_on_train_epoch_end", &options.save_on_train_epoch_end,
            "when every_n_epochs writes; true: at the end of the epoch; false: at the end of each "
            "validation in it; auto: as false if validations take place within epochs or not in "
            "every epoch, otherwise as true",
            one_of({"auto", "true", "false"}));
  table.add("checkpoint.on_exception", &options.on_exception,
            "a rank that fails writes a checkpoint if it has the whole state; docs/callbacks.md");
}

void add_options(config::Table& table, EarlyStoppingOptions& options) {
  table.add("early_stopping.monitor", &options.monitor,
            "end the run when this metric, for example validation/loss, no longer improves; empty: "
            "never");
  table.add("early_stopping.mode", &options.mode,
            "min: smaller values of the metric are better; max: larger values are",
            one_of({"min", "max"}));
  table.add("early_stopping.patience", &options.patience,
            "end the run after N values in a row without an improvement", count_from(1));
  table.add("early_stopping.min_delta", &options.min_delta,
            "count only improvements that are greater than this", at_least(0.0));
  table.add("early_stopping.strict", &options.strict,
            "end with an error if the metric is not logged; false: ignore a missing metric");
  table.add("early_stopping.check_finite", &options.check_finite,
            "end the run when the metric is NaN or infinite");
  table.add("early_stopping.stopping_threshold", &options.stopping_threshold,
            "end the run when the metric is better than this; nan: never");
  table.add("early_stopping.divergence_threshold", &options.divergence_threshold,
            "end the run when the metric is worse than this; nan: never");
}

void add_options(config::Table& table, TimerOptions& options) {
  table.add("timer.interval", &options.interval,
            "end the run after the step or after the epoch in which trainer.max_time elapses",
            one_of({"step", "epoch"}));
  table.add("timer.verbose", &options.verbose,
            "print at the end how long training and validation took");
}

void add_options(config::Table& table, EmaOptions& options) {
  table.add("ema.enabled", &options.enabled,
            "validate with an exponential moving average of the weights; docs/callbacks.md");
  table.add("ema.decay", &options.decay,
            "weight of the old average in each update; the new weights get the rest",
            from_to_below(0.0, 1.0));
  table.add("ema.update_every_n_steps", &options.update_every_n_steps,
            "update the average every N optimizer steps", count_from(1));
  table.add("ema.update_starting_at_step", &options.update_starting_at_step,
            "leave the weights of the first N steps out of the average", count_from(0));
  table.add("ema.use_buffers", &options.use_buffers,
            "also average buffers (batch-norm statistics); false: use the latest ones");
}

void add_options(config::Table& table, SwaOptions& options) {
  table.add("swa.swa_lrs", &options.swa_lrs,
            "stochastic weight averaging: learning rate of the epochs at whose ends the weights "
            "are averaged; 0: off",
            at_least(0.0));
  table.add("swa.swa_epoch_start", &options.swa_epoch_start,
            "begin to average in this epoch, counted from 0: a number, for example 8, or a "
            "fraction of max_epochs",
            number_or_share());
  table.add("swa.annealing_epochs", &options.annealing_epochs,
            "change the learning rate to swa_lrs within N epochs", count_from(0));
  table.add("swa.annealing_strategy", &options.annealing_strategy,
            "curve by which the learning rate changes to swa_lrs", one_of({"cos", "linear"}));
}

void add_options(config::Table& table, StatisticsOptions& options) {
  table.add("statistics.every_n_steps", &options.every_n_steps,
            "log statistics of gradients and weights every N optimizer steps; 0: never",
            count_from(0));
  table.add("statistics.of", &options.of, "which tensors the statistics are of",
            some_of({"gradients", "weights"}));
  table.add("statistics.per", &options.per,
            "log them in total, and also for each parameter or each block (the parameters with the "
            "same name up to its last dot)",
            one_of({"parameter", "block", "total"}));
}

void add_options(config::Table& table, ThroughputOptions& options) {
  table.add("throughput.enabled", &options.enabled,
            "log steps, tokens and FLOPs a second, and the fraction of the device's peak (MFU)");
  table.add("throughput.available_flops", &options.available_flops,
            "peak FLOPs a second of each process's device; 0: from the data sheet of a known GPU, "
            "otherwise measured with matrix products",
            at_least(0.0));
}

}  // namespace troika::train
