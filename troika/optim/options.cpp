#include "troika/optim/options.h"

#include "troika/base/config.h"

namespace troika::optim {

using config::above;
using config::above_to;
using config::at_least;
using config::between;
using config::count_from;
using config::from_to_below;
using config::one_of;

void add_options(config::Table& table, OptimizerOptions& options) {
  table.add("optim.name", &options.name, "optimizer", one_of(optimizer_names()));
  table.add("optim.lr", &options.lr, "base learning rate", above(0.0));
  table.add("optim.weight_decay", &options.weight_decay, "strength of weight decay", at_least(0.0));
  table.add("optim.decay_vectors", &options.decay_vectors,
            "weight decay, and with lars and lamb the rate per tensor, also for biases and "
            "normalisations");
  table.add("optim.momentum", &options.momentum, "momentum of sgd and lars", between(0.0, 1.0));
  table.add("optim.nesterov", &options.nesterov, "Nesterov momentum, for sgd");
  table.add("optim.beta1", &options.beta1,
            "adam, adamw, adamw_8bit and lamb: decay rate of the first moment",
            from_to_below(0.0, 1.0));
  table.add("optim.beta2", &options.beta2,
            "adam, adamw, adamw_8bit and lamb: decay rate of the second moment",
            from_to_below(0.0, 1.0));
  table.add("optim.eps", &options.eps,
            "adam, adamw, adamw_8bit, lamb and adagrad: number that is added to the denominator",
            above(0.0));
  table.add("optim.trust_coefficient", &options.trust_coefficient,
            "lars: ratio of a tensor's step to its norm", above(0.0));
  for (const char* name : {"learning_rate", "base_lr"}) table.add_known_as(name, "optim.lr");
  for (const char* name : {"optimizer", "opt"}) table.add_known_as(name, "optim.name");
  table.add_known_as("wd", "optim.weight_decay");
}

void add_options(config::Table& table, ScheduleOptions& options) {
  table.add("optim.scaling", &options.scaling,
            "multiply lr by global batch / reference_batch, or by its square root; the warm-up "
            "then starts at lr",
            one_of(scaling_names()));
  table.add("optim.reference_batch", &options.reference_batch,
            "global batch for which lr is given; see scaling", count_from(1));
  table.add("optim.schedule", &options.name, "how the learning rate changes from step to step",
            one_of(schedule_names()));
  table.add("optim.warmup_steps", &options.warmup_steps,
            "number of first steps in which the learning rate rises linearly to lr",
            at_least(int64_t{0}));
  table.add("optim.final_factor", &options.final_factor,
            "cosine, polynomial and one_cycle: last learning rate as a fraction of lr; plateau: "
            "lowest learning rate as a fraction of lr",
            between(0.0, 1.0));
  table.add("optim.gamma", &options.gamma,
            "step, multi_step and plateau: factor by which the learning rate falls",
            above_to(0.0, 1.0));
  table.add("optim.step_size", &options.step_size,
            "step: number of optimizer steps between two falls of the learning rate",
            count_from(1));
  table.add("optim.milestones", &options.milestones,
            "multi_step: optimizer steps at which the learning rate falls, ascending");
  table.add("optim.power", &options.power, "polynomial: exponent", above(0.0));
  table.add("optim.start_factor", &options.start_factor,
            "one_cycle: first learning rate as a fraction of lr", between(0.0, 1.0));
  table.add("optim.rise_fraction", &options.rise_fraction,
            "one_cycle: fraction of the steps in which the learning rate rises", between(0.0, 1.0));
  table.add(
      "optim.patience", &options.patience,
      "plateau: the learning rate falls after this number of validations in a row without a lower "
      "loss, and one more",
      count_from(0));
  table.add("optim.threshold", &options.threshold,
            "plateau: a loss is lower if it is below the best loss by this fraction of it",
            between(0.0, 1.0));
  for (const char* name : {"scheduler", "lr_scheduler", "lr_scheduler_type"}) {
    table.add_known_as(name, "optim.schedule");
  }
}

void add_offload(config::Table& table, OptimizerOptions& options) {
  table.add("offload.optimizer", &options.offload,
            "folder for files that hold the states of the optimizer; empty: no offload");
}

}  // namespace troika::optim
