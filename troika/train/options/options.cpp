#include "troika/train/options/options.h"

#include <algorithm>
#include <utility>

#include "troika/base/error.h"
#include "troika/layout/recompute.h"
#include "troika/nn/memory_format.h"
#include "troika/nn/precision.h"
#include "troika/nn/weight_layout.h"
#include "troika/observe/loggers/logger.h"
#include "troika/train/options/cpu_binding.h"
#include "troika/train/options/resolve_plan.h"

namespace troika::train {

namespace {

using config::at_least;
using config::between;
using config::count_from;
using config::count_or_flag;
using config::number_or_share;
using config::one_of;
using config::some_of;

// An integer >= 1, or -1 with the given meaning.
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

// Describes the names that run_folder() accepts.
constexpr const char* kRunNames = "a relative path without . or .. in it";

bool is_run_name(const std::filesystem::path& name) {
  return !name.empty() && name.is_relative() && name.has_filename() &&
         std::none_of(name.begin(), name.end(),
                      [](const auto& part) { return part == "." || part == ".."; });
}

void add_run(config::Table& table, TrainOptions::Run& run) {
  table.add("run.name", &run.name,
            "name of the run: results go to folder/name, or to folder/name-2, name-3... if a run "
            "has left results there and this one does not resume it",
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
            "how devices work together; those after pipeline are pipelines with a schedule of that "
            "name (docs/pipelines.md), and those from auto on Lightning's names for others",
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
            "the start of a run of 500 micro-batches or more (trainer.benchmark)",
            one_of(nn::memory_format_names()));
  table.add("trainer.weight_layout", &trainer.weight_layout,
            "gpt: order of linear layers' weights in memory, the numbers of one input or those of "
            "one output side by side; auto: in_out, or what is timed to be faster at the start of "
            "a run of 500 micro-batches or more (trainer.benchmark)",
            one_of(nn::weight_layout_names()));
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
            "train and validate on this number or fraction of batches, training the same in every "
            "epoch; 0: off",
            number_or_share());
  table.add("trainer.fast_dev_run", &trainer.fast_dev_run,
            "try everything on this number of batches, without loggers and checkpoints; 0: off",
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
            some_of(observe::logger_names()));
  table.add("trainer.threads", &trainer.threads,
            "threads of computation in each process; 0: cores / processes on this machine",
            between(int64_t{0}, int64_t{65536}));
  table.add(
      "trainer.cpu_bind", &trainer.cpu_bind,
      "where threads of computation run; none: the system moves them; cores: each process's "
      "on cores of its own among those that this machine's processes share; auto: none, or "
      "cores where that is timed to be faster at the start of a run of 500 micro-batches or more "
      "(trainer.benchmark); docs/trainer.md",
      one_of(cpu_bind_names(), {{"free", "none"}, {"core", "cores"}, {"exclusive", "cores"}}));
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
      "checkpoint to resume from: last or best of the run (a new run if there is none), the folder "
      "of a run or of a checkpoint; for validate, test and predict: whose weights, also a file");
}

void add_weights(config::Table& table, TrainOptions::Weights& weights) {
  table.add(
      "model.weights", &weights.path,
      "start a new run from these weights: the folder of a run or of a checkpoint, last, best, or "
      "a safetensors file, also one that troika import takes; empty: random weights");
  table.add("model.weights_strict", &weights.strict,
            "the weights must have all tensors of the model; false: take those that fit, and log "
            "which stay random");
}

// Names of the same options in PyTorch's scripts, Hugging Face's transformers, torchrun and
// nanoGPT.
void add_other_names(config::Table& table) {
  const std::pair<const char*, std::vector<const char*>> names[] = {
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
  add_options(table, options.checkpoint);
  add_options(table, options.early_stopping);
  add_options(table, options.timer);
  add_options(table, options.ema);
  add_options(table, options.swa);
  add_options(table, options.statistics);
  add_options(table, options.throughput);
  nn::add_name(table, options.model);
  add_weights(table, options.weights);
  nn::add_sizes(table, options.model);
  data::add_options(table, options.data);
  optim::add_options(table, options.optimizer);
  optim::add_options(table, options.schedule);
  nn::add_options(table, options.offload);
  optim::add_offload(table, options.optimizer);
  comm::add_options(table, options.comm);
  parallel::add_options(table, options.ddp);
  parallel::add_options(table, options.horovod);
  parallel::add_options(table, options.zero);
  parallel::add_options(table, options.local_sgd);
  parallel::add_options(table, options.diloco);
  parallel::add_options(table, options.mesh);
  parallel::add_options(table, options.pipeline);
  add_other_names(table);
  return table;
}

std::vector<config::Table::Setting> changed_options(const std::string& toml) {
  TrainOptions options;
  auto table = make_table(options);
  table.parse(toml, "config.toml");
  return table.changed();
}

}  // namespace troika::train
