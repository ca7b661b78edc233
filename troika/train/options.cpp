#include "troika/train/options.h"

#include <algorithm>

#include "troika/base/error.h"
#include "troika/layout/recompute.h"
#include "troika/nn/attention.h"
#include "troika/nn/memory_format.h"
#include "troika/nn/precision.h"
#include "troika/train/callbacks/options.h"
#include "troika/train/exchange_options.h"
#include "troika/train/loggers/logger.h"
#include "troika/train/resolve_plan.h"

namespace troika::train {

namespace {

using config::above;
using config::above_to;
using config::at_least;
using config::between;
using config::count_from;
using config::count_or_flag;
using config::from_to_below;
using config::number_or_share;
using config::one_of;
using config::some_of;

// At least one, or -1 with its meaning.
config::Rule count_or(const std::string& minus_one) {
  return {"an integer >= 1, or -1 for " + minus_one, [](const config::Value& value) {
            const auto count = std::get<int64_t>(value);
            return count >= 1 || count == -1;
          }};
}

config::Rule recompute_policy() {
  return {"none, full, selective, sqrt, every_K with K >= 1, or budget:BYTES as in budget:6GiB",
          [](const config::Value& value) {
            const auto& policy = std::get<std::string>(value);
            try {
              if (!layout::recompute_budget(policy)) layout::recompute_plan(policy, 1);
              return true;
            } catch (const Error&) {
              return false;
            }
          }};
}

// The names that run_folder() takes.
constexpr const char* kRunNames = "a relative path without . or .. in it";

bool is_run_name(const std::filesystem::path& name) {
  return !name.empty() && name.is_relative() && name.has_filename() &&
         std::none_of(name.begin(), name.end(),
                      [](const auto& part) { return part == "." || part == ".."; });
}

void add_run(config::Table& table, TrainOptions::Run& run) {
  table.add("run.name", &run.name,
            "name of the run: results go to folder/name, or to folder/name-2, name-3... if a run "
            "has left results there and this one does not go on with it",
            {kRunNames,
             [](const config::Value& value) { return is_run_name(std::get<std::string>(value)); }});
  table.add("run.folder", &run.folder, "where runs are kept");
  table.add("run.overwrite", &run.overwrite,
            "write to folder/name even if a run has left results there");
  table.add(
      "run.seed", &run.seed,
      "seed of initial weights, data order, augmentation and dropout; also trainer.seed_everything",
      at_least(int64_t{0}));
  table.add_alias("trainer.seed_everything", "run.seed");
}

void add_trainer(config::Table& table, TrainOptions::Trainer& trainer) {
  table.add(
      "trainer.accelerator", &trainer.accelerator,
      "what computes; gpu and cuda: on each process's own GPU; auto: that if there is one and "
      "the processes can use nccl, else cpu; docs/trainer.md",
      one_of({"auto", "cpu", "gpu", "cuda"}));
  table.add("trainer.devices", &trainer.devices,
            "processes on this machine, started by train itself unless a launcher did; -1: as many "
            "as the launcher started, one without; with dp threads of one process, -1: one",
            count_or("as many as the launcher started"));
  table.add("trainer.num_nodes", &trainer.num_nodes,
            "machines that the run is to be on, checked; -1: any number", count_or("any number"));
  table.add("trainer.strategy", &trainer.strategy,
            "how devices work together; names after dp are Lightning's for some of those before",
            one_of(strategy_names()));
  table.add("trainer.plan", &trainer.plan,
            "text of a plan, in place of strategy and of all else that a plan decides; `--plan "
            "FILE` of troika train puts it here; docs/plan.md");
  table.add("trainer.precision", &trainer.precision,
            "number type: mixed computes matrix products and convolutions in 16 bits, true keeps "
            "parameters so too; docs/precision-and-memory.md",
            one_of(nn::precision_names(), nn::other_precision_names()));
  table.add("trainer.memory_format", &trainer.memory_format,
            "order of images and convolutions' weights in memory; auto: channels_last for "
            "precisions that compute in 16 bits, else contiguous, or what is timed to be faster at "
            "the start of a run of 500 passes or more (trainer.benchmark)",
            one_of(nn::memory_format_names()));
  table.add("trainer.sync_batchnorm", &trainer.sync_batchnorm,
            "batch norms take the statistics of the batches of all processes");
  table.add("trainer.recompute", &trainer.recompute,
            "which of the model's blocks drop their activations and compute them again backward: "
            "less memory, up to a forward pass more; docs/precision-and-memory.md",
            recompute_policy());
  table.add("trainer.max_epochs", &trainer.max_epochs,
            "passes over the training data; 0: 1000, but no limit where max_steps or max_time is "
            "set; -1: no limit, one of them must end the run",
            count_from(-1));
  table.add("trainer.max_steps", &trainer.max_steps,
            "stop after this many optimizer steps; -1: only max_epochs counts",
            count_or("no limit"));
  table.add("trainer.min_epochs", &trainer.min_epochs,
            "epochs that callbacks and max_time cannot cut short", count_from(0));
  table.add("trainer.min_steps", &trainer.min_steps,
            "optimizer steps that callbacks and max_time cannot cut short", count_from(0));
  table.add("trainer.max_time", &trainer.max_time,
            "the run ends after this time, DD:HH:MM:SS, that of before a resume included; empty: "
            "no limit");
  table.add("trainer.limit_train_batches", &trainer.limit_train_batches,
            "batches of an epoch: a number as 10, or a share as 0.1; 1.0: all", number_or_share());
  table.add("trainer.limit_val_batches", &trainer.limit_val_batches,
            "batches, of the size of a training step's, that are validated: a number or a share; "
            "0: no validation",
            number_or_share());
  table.add("trainer.limit_test_batches", &trainer.limit_test_batches, "the same for troika test",
            number_or_share());
  table.add("trainer.limit_predict_batches", &trainer.limit_predict_batches,
            "the same for troika predict", number_or_share());
  table.add("trainer.overfit_batches", &trainer.overfit_batches,
            "train and validate on this number or share of batches, training the same in every "
            "epoch; 0: off",
            number_or_share());
  table.add("trainer.fast_dev_run", &trainer.fast_dev_run,
            "try everything on so many batches, without loggers and checkpoints; 0: off",
            count_or_flag());
  table.add("trainer.val_check_interval", &trainer.val_check_interval,
            "batches between validations inside of an epoch: a number or a share; 1.0: only at its "
            "end",
            number_or_share());
  table.add("trainer.num_sanity_val_steps", &trainer.num_sanity_val_steps,
            "batches to validate before training, so that errors show early; -1: all",
            count_from(-1));
  table.add("trainer.deterministic", &trainer.deterministic,
            "only algorithms that give the same bits each time; an error where there is none");
  table.add("trainer.benchmark", &trainer.benchmark,
            "choose the fastest of several implementations by timing them at the start, as "
            "model.attn_implementation=auto does; not with trainer.deterministic");
  table.add(
      "trainer.terminate_on_nan", &trainer.terminate_on_nan,
      "end the run with an error, and its batch in the run's folder, when the training loss is "
      "infinite or NaN; with 16-mixed and 16-true the loss scaler skips such steps instead");
  table.add(
      "trainer.accumulate_grad_batches", &trainer.accumulate_grad_batches,
      "batches whose gradients, added up and divided by this number, make one optimizer step; "
      "perhaps fewer at the end of an epoch",
      count_from(1));
  table.add("trainer.gradient_clip_val", &trainer.gradient_clip_val,
            "clip gradients to this before each step; 0: do not", at_least(0.0));
  table.add("trainer.gradient_clip_algorithm", &trainer.gradient_clip_algorithm,
            "norm: clip the norm of all gradients together; value: clip each number",
            one_of({"norm", "value"}));
  table.add("trainer.check_val_every_n_epoch", &trainer.check_val_every_n_epoch,
            "validate after every n-th epoch, and after the last", at_least(int64_t{1}));
  table.add("trainer.log_every_n_steps", &trainer.log_every_n_steps, "steps between logged rows",
            at_least(int64_t{1}));
  table.add("trainer.loggers", &trainer.loggers, "where metrics are written, in the run's folder",
            some_of(logger_names()));
  table.add("trainer.threads", &trainer.threads,
            "threads of computation in each process; 0: cores / processes on this machine",
            between(int64_t{0}, int64_t{65536}));
  table.add("trainer.enable_progress_bar", &trainer.enable_progress_bar, "show progress on rank 0");
  table.add("trainer.enable_model_summary", &trainer.enable_model_summary,
            "say on rank 0 what the run is about to do (model, data, steps, strategy, memory), and "
            "what came of it");
  table.add(
      "trainer.memory_check", &trainer.memory_check,
      "on: a run ends with an error where what is predicted of it does not fit into the memory of "
      "the machine or the cgroup, with troika train also where a tensor on the CPU does not; off: "
      "tries",
      one_of({"on", "off"}));
  table.add("trainer.trace", &trainer.trace,
            "write what happened when on all ranks in the first 500 steps to trace.json, for "
            "Perfetto and troika report");
  table.add("trainer.profiler", &trainer.profiler,
            "simple: a table of the times of hooks and of the parts of steps; empty: none",
            {"simple, or nothing", [](const config::Value& value) {
               const auto& name = std::get<std::string>(value);
               return name.empty() || name == "simple";
             }});
  table.add(
      "trainer.ckpt_path", &trainer.ckpt_path,
      "checkpoint to go on from: last or best of the run (a new run if there is none), the folder "
      "of a run or of a checkpoint; for validate, test and predict: whose weights, also a file");
}

// One of these, or empty.
config::Rule one_of_or_none(const std::vector<std::string>& names) {
  auto rule = one_of(names);
  rule.holds = [one_of_them = rule.holds](const config::Value& value) {
    return std::get<std::string>(value).empty() || one_of_them(value);
  };
  return rule;
}

void add_model(config::Table& table, nn::ModelOptions& model, TrainOptions::Weights& weights) {
  table.add("model.name", &model.name,
            "which model; empty in the options of a run whose module a program gave",
            one_of_or_none(nn::model_names()));
  table.add(
      "model.weights", &weights.path,
      "start a new run from these weights: the folder of a run or of a checkpoint, last, best, or "
      "a safetensors file, also one that troika import takes; empty: random weights");
  table.add("model.weights_strict", &weights.strict,
            "the weights must have all tensors of the model; false: take those that fit, and log "
            "which stay random");
  if (model.name.empty()) return;  // a module of a program has none of the sizes below
  table.add("model.dropout", &model.dropout,
            "probability of dropout, for mlp, vgg*, inception_v3 and gpt; the same masks on any "
            "number of ranks",
            between(0.0, 1.0));
  table.add("model.hidden_layers", &model.hidden_layers, "mlp: number of hidden layers",
            at_least(int64_t{0}));
  table.add("model.hidden_width", &model.hidden_width, "mlp: width of the hidden layers",
            at_least(int64_t{1}));
  table.add("model.layers", &model.layers, "gpt: number of transformer blocks",
            at_least(int64_t{1}));
  table.add("model.heads", &model.heads, "gpt: number of attention heads", at_least(int64_t{1}));
  table.add("model.width", &model.width, "gpt: width of the embeddings", at_least(int64_t{1}));
  table.add("model.attn_implementation", &model.attn_implementation,
            "gpt: how attention is computed; eager: by products; sdpa: by LibTorch's fused "
            "kernel, from LibTorch 2.0 on; auto: the faster one, docs/trainer.md",
            one_of(nn::attention_names(), {{"math", "eager"},
                                           {"products", "eager"},
                                           {"fused", "sdpa"},
                                           {"flash", "sdpa"},
                                           {"flash_attention_2", "sdpa"}}));
}

// What make_dataset() reads beside the name.
void add_named_data(config::Table& table, TrainOptions::Data& data) {
  table.add("data.path", &data.path, "folder of the files of cifar10, cifar100 and idx");
  table.add("data.files", &data.files, "text: the files to read, one after another");
  table.add("data.train_samples", &data.train_samples,
            "train on the first so many samples; 0: all (shapes: 10000)", at_least(int64_t{0}));
  table.add("data.validation_samples", &data.validation_samples,
            "validate on the first so many samples; 0: all (shapes: 2000)", at_least(int64_t{0}));
  table.add("data.context", &data.context, "text: length of a sample in bytes",
            at_least(int64_t{1}));
  table.add("data.validation_fraction", &data.validation_fraction,
            "text: share at the end that is held out for validation", between(0.0, 1.0));
  table.add("data.augment", &data.augment, "random crops and flips of training images");
}

void add_data(config::Table& table, TrainOptions::Data& data) {
  table.add("data.name", &data.name,
            "which data set; empty in the options of a run whose data a program gave",
            one_of_or_none(data::dataset_names()));
  if (!data.name.empty()) add_named_data(table, data);
  table.add("data.batch_size", &data.batch_size, "samples of a step on each process",
            count_from(1));
  table.add(
      "data.global_batch_size", &data.global_batch_size,
      "samples of a step on all processes together, in place of batch_size; 0: batch_size counts",
      count_from(0));
  table.add("data.workers", &data.workers, "threads of each process that load batches ahead",
            between(int64_t{0}, int64_t{1024}));
  table.add("data.prefetch", &data.prefetch, "batches that are loaded ahead",
            between(int64_t{1}, int64_t{65536}));
}

void add_optim(config::Table& table, optim::OptimizerOptions& optimizer,
               optim::ScheduleOptions& schedule) {
  table.add("optim.name", &optimizer.name, "which optimizer", one_of(optim::optimizer_names()));
  table.add("optim.lr", &optimizer.lr, "base learning rate", above(0.0));
  table.add("optim.weight_decay", &optimizer.weight_decay, "strength of weight decay",
            at_least(0.0));
  table.add("optim.decay_vectors", &optimizer.decay_vectors,
            "weight decay on biases and normalisations too, and with lars and lamb a rate of their "
            "own");
  table.add("optim.momentum", &optimizer.momentum, "momentum of sgd and lars", between(0.0, 1.0));
  table.add("optim.nesterov", &optimizer.nesterov, "Nesterov momentum, for sgd");
  table.add("optim.beta1", &optimizer.beta1, "of adam, adamw, adamw_8bit and lamb",
            from_to_below(0.0, 1.0));
  table.add("optim.beta2", &optimizer.beta2, "of adam, adamw, adamw_8bit and lamb",
            from_to_below(0.0, 1.0));
  table.add("optim.eps", &optimizer.eps, "of adam, adamw, adamw_8bit, lamb and adagrad",
            above(0.0));
  table.add("optim.trust_coefficient", &optimizer.trust_coefficient,
            "of lars: a tensor's step as a share of its norm", above(0.0));
  table.add("optim.scaling", &schedule.scaling,
            "multiply lr by the global batch over reference_batch, or its square root; the warm-up "
            "then starts at lr",
            one_of(optim::scaling_names()));
  table.add("optim.reference_batch", &schedule.reference_batch,
            "global batch that lr is given for, see scaling", count_from(1));
}

void add_schedule(config::Table& table, optim::ScheduleOptions& schedule) {
  table.add("optim.schedule", &schedule.name, "how the learning rate changes from step to step",
            one_of(optim::schedule_names()));
  table.add("optim.warmup_steps", &schedule.warmup_steps,
            "the learning rate rises to lr linearly in so many first steps", at_least(int64_t{0}));
  table.add("optim.final_factor", &schedule.final_factor,
            "cosine, polynomial and one_cycle: last learning rate as a share of lr; plateau: the "
            "least one",
            between(0.0, 1.0));
  table.add("optim.gamma", &schedule.gamma,
            "step, multi_step and plateau: factor by which the learning rate falls",
            above_to(0.0, 1.0));
  table.add("optim.step_size", &schedule.step_size,
            "step: the learning rate falls every so many optimizer steps", count_from(1));
  table.add("optim.milestones", &schedule.milestones,
            "multi_step: optimizer steps at which the learning rate falls, ascending");
  table.add("optim.power", &schedule.power, "polynomial: exponent", above(0.0));
  table.add("optim.start_factor", &schedule.start_factor,
            "one_cycle: first learning rate as a share of lr", between(0.0, 1.0));
  table.add("optim.rise_fraction", &schedule.rise_fraction,
            "one_cycle: share of the steps in which the learning rate rises", between(0.0, 1.0));
  table.add("optim.patience", &schedule.patience,
            "plateau: the learning rate falls after so many validations in a row without a lower "
            "loss, and one more",
            count_from(0));
  table.add("optim.threshold", &schedule.threshold,
            "plateau: a loss is lower if it is by this share of the best loss", between(0.0, 1.0));
}

void add_offload(config::Table& table, TrainOptions& options) {
  table.add(
      "offload.activations", &options.offload.activations,
      "folder for files that hold activations between forward and backward pass; host: those "
      "of a GPU are in host memory; empty: where they are made; docs/precision-and-memory.md");
  table.add("offload.optimizer", &options.optimizer.offload,
            "folder for files that hold the optimizer's states; empty: memory");
}

// PyTorch's scripts, Hugging Face's transformers, torchrun and nanoGPT call them so.
void add_other_names(config::Table& table) {
  const std::pair<const char*, std::vector<const char*>> names[] = {
      {"optim.lr", {"learning_rate", "base_lr"}},
      {"optim.name", {"optimizer", "opt"}},
      {"optim.schedule", {"scheduler", "lr_scheduler", "lr_scheduler_type"}},
      {"optim.weight_decay", {"wd"}},
      {"data.name", {"data", "dataset"}},
      {"data.batch_size", {"bs", "per_device_train_batch_size"}},
      {"data.workers", {"num_workers", "dataloader_num_workers"}},
      {"trainer.max_epochs", {"epochs", "num_epochs", "n_epochs", "num_train_epochs"}},
      {"trainer.max_steps", {"steps", "num_steps", "max_iters"}},
      {"trainer.devices", {"gpus", "num_gpus", "num_processes", "nproc_per_node"}},
      {"trainer.num_nodes", {"nodes", "nnodes"}},
      {"trainer.accumulate_grad_batches", {"gradient_accumulation_steps", "accum_iter"}},
      {"trainer.gradient_clip_val", {"max_grad_norm", "clip_grad", "grad_clip"}},
      {"trainer.precision", {"amp", "fp16", "bf16", "mixed_precision"}},
      {"trainer.ckpt_path", {"resume", "resume_from_checkpoint", "checkpoint"}},
      {"run.folder", {"output_dir", "out_dir", "save_dir", "default_root_dir"}},
      {"run.name", {"experiment_name", "run_name"}},
  };
  for (const auto& [key, others] : names) {
    for (const auto* other : others) table.add_known_as(other, key);
  }
}

}  // namespace

std::filesystem::path run_folder(const TrainOptions& options) {
  if (!is_run_name(options.run.name)) {
    throw Error("train", ErrorKind::usage,
                {.what = "run.name does not name a folder in run.folder",
                 .got = "\"" + options.run.name + "\"",
                 .expected = kRunNames});
  }
  return std::filesystem::path(options.run.folder) / options.run.name;
}

config::Table make_table(TrainOptions& options) {
  config::Table table;
  add_run(table, options.run);
  add_trainer(table, options.trainer);
  add_callbacks(table, options);
  add_model(table, options.model, options.weights);
  add_data(table, options.data);
  add_optim(table, options.optimizer, options.schedule);
  add_schedule(table, options.schedule);
  add_offload(table, options);
  add_exchange(table, options);
  add_other_names(table);
  return table;
}

}  // namespace troika::train
