#include "troika/train/callbacks/options.h"

namespace troika::train {

namespace {

using config::at_least;
using config::count_from;
using config::from_to_below;
using config::number_or_share;
using config::one_of;
using config::some_of;

void add_checkpoint(config::Table& table, TrainOptions::Checkpoint& checkpoint) {
  table.add("checkpoint.enabled", &checkpoint.enabled,
            "write any; when asked to stop, one is written all the same");
  table.add(
      "checkpoint.every_n_epochs", &checkpoint.every_n_epochs,
      "epochs between checkpoints; 0: none at the end of epochs, but save_last's at the end of the "
      "run",
      count_from(0));
  table.add("checkpoint.every_n_train_steps", &checkpoint.every_n_train_steps,
            "optimizer steps between further checkpoints; 0: none", count_from(0));
  table.add("checkpoint.async", &checkpoint.async,
            "write beside training, from a copy in memory; one at a time");
  table.add("checkpoint.weights_only", &checkpoint.weights_only,
            "write weights alone, which no run goes on from; when asked to stop, all is written");
  table.add("checkpoint.train_time_interval", &checkpoint.train_time_interval,
            "time between further checkpoints, DD:HH:MM:SS; empty: none");
  table.add("checkpoint.monitor", &checkpoint.monitor,
            "metric that says which checkpoints are the best, as validation/loss; empty: the "
            "latest are");
  table.add("checkpoint.mode", &checkpoint.mode, "whether less or more of it is better",
            one_of({"min", "max"}));
  table.add("checkpoint.save_top_k", &checkpoint.save_top_k, "how many of the best stay; -1: all",
            count_from(-1));
  table.add("checkpoint.save_last", &checkpoint.save_last,
            "write and keep the latest too where it is not among the best; link: only if none of "
            "the best stays (save_top_k 0)",
            one_of({"true", "false", "link"}));
  table.add("checkpoint.save_on_train_epoch_end", &checkpoint.save_on_train_epoch_end,
            "whether every_n_epochs means the end of epochs, or of each validation in them; auto: "
            "of validations, where these come inside of epochs or not in each",
            one_of({"auto", "true", "false"}));
  table.add("checkpoint.on_exception", &checkpoint.on_exception,
            "a rank that fails writes what it has, where it has all of it; docs/callbacks.md");
}

void add_early_stopping(config::Table& table, TrainOptions::EarlyStopping& stopping) {
  table.add("early_stopping.monitor", &stopping.monitor,
            "metric without whose improvement the run ends, as validation/loss; empty: none");
  table.add("early_stopping.mode", &stopping.mode, "whether less or more of it is better",
            one_of({"min", "max"}));
  table.add("early_stopping.patience", &stopping.patience,
            "values in a row without improvement that end the run", count_from(1));
  table.add("early_stopping.min_delta", &stopping.min_delta,
            "an improvement must be larger than this", at_least(0.0));
  table.add("early_stopping.strict", &stopping.strict,
            "a metric that is not logged is an error, instead of no reason to end");
  table.add("early_stopping.check_finite", &stopping.check_finite,
            "a value that is NaN or infinite ends the run");
  table.add("early_stopping.stopping_threshold", &stopping.stopping_threshold,
            "a better value ends the run; nan: none does");
  table.add("early_stopping.divergence_threshold", &stopping.divergence_threshold,
            "a worse value ends the run; nan: none does");
}

void add_timer(config::Table& table, TrainOptions::Timer& timer) {
  table.add("timer.interval", &timer.interval, "after what a run whose max_time is over ends",
            one_of({"step", "epoch"}));
  table.add("timer.verbose", &timer.verbose,
            "say at the end how long training and validation took");
}

void add_averages(config::Table& table, TrainOptions::Ema& ema, TrainOptions::Swa& swa) {
  table.add("ema.enabled", &ema.enabled,
            "validate with an exponential moving average of the weights; docs/callbacks.md");
  table.add("ema.decay", &ema.decay, "share that the average keeps at an update",
            from_to_below(0.0, 1.0));
  table.add("ema.update_every_n_steps", &ema.update_every_n_steps, "optimizer steps",
            count_from(1));
  table.add("ema.update_starting_at_step", &ema.update_starting_at_step,
            "steps before the first that enters the average", count_from(0));
  table.add("ema.use_buffers", &ema.use_buffers,
            "average buffers (batch-norm statistics) too; else the latest are used");
  table.add("swa.swa_lrs", &swa.swa_lrs,
            "learning rate while weights are averaged at the end of epochs; 0: no averages",
            at_least(0.0));
  table.add("swa.swa_epoch_start", &swa.swa_epoch_start,
            "epoch, counted from 0, that begins it: a number as 8, or a share of max_epochs",
            number_or_share());
  table.add("swa.annealing_epochs", &swa.annealing_epochs, "in which the rate goes to swa_lrs",
            count_from(0));
  table.add("swa.annealing_strategy", &swa.annealing_strategy, "how it goes there",
            one_of({"cos", "linear"}));
}

void add_observers(config::Table& table, TrainOptions& options) {
  auto& statistics = options.statistics;
  table.add("statistics.every_n_steps", &statistics.every_n_steps,
            "optimizer steps between statistics of gradients and weights; 0: none", count_from(0));
  table.add("statistics.of", &statistics.of, "what they are of", some_of({"gradients", "weights"}));
  table.add("statistics.per", &statistics.per,
            "what has some of its own, beside the total: block is what stands before a name's last "
            "dot",
            one_of({"parameter", "block", "total"}));
  auto& throughput = options.throughput;
  table.add("throughput.enabled", &throughput.enabled,
            "log steps, tokens and FLOPs a second, and their share of the peak");
  table.add("throughput.available_flops", &throughput.available_flops,
            "peak of each process's device in FLOPs a second; 0: its data sheet's if it is a known "
            "GPU, else measured by matrix products",
            at_least(0.0));
}

}  // namespace

void add_callbacks(config::Table& table, TrainOptions& options) {
  add_checkpoint(table, options.checkpoint);
  add_early_stopping(table, options.early_stopping);
  add_timer(table, options.timer);
  add_averages(table, options.ema, options.swa);
  add_observers(table, options);
}

}  // namespace troika::train
