#include "troika/train/options/options.h"

#include <algorithm>
#include <utility>

#include "troika/base/config.h"
#include "troika/base/error.h"
#include "troika/base/text.h"
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
  return {
      "none, full, selective, sqrt, every_K with K >= 1, one of these for each stage of a pipeline "
      "with bars between them, or budget:BYTES, for example budget:6GiB",
      [](const config::Value& value) {
        const auto& policies = std::get<std::string>(value);
        try {
          if (layout::recompute_budget(policies)) return true;
          for (const auto& policy : split(policies, '|')) layout::recompute_plan(policy, size_t{1});
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
  table.add("run.folder", &run.folder, "folder that contains the folders of runs");
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
      "device on which each process computes; gpu, cuda: one GPU for each process; auto: a GPU if "
      "there is one and the processes can use nccl, otherwise the CPU; docs/trainer.md",
      one_of({"auto", "cpu", "gpu", "cuda"}));
  table.add("trainer.devices", &trainer.devices,
            "number of processes on this machine, which troika train starts unless a launcher has "
            "started them; -1: as many as the launcher started, or one without a launcher; "
            "strategy dp: number of threads in one process, -1: one",
            count_or("as many as the launcher started"));
  table.add("trainer.num_nodes", &trainer.num_nodes,
            "number of machines that the run must have; -1: any number", count_or("any number"));
  table.add(
      "trainer.strategy", &trainer.strategy,
      "how the run is distributed over devices; pipeline is followed by the pipeline "
      "schedules, whose names are strategies, too (docs/pipelines.md); tp: layers are cut over "
      "ranks; 3d: the layers of a pipeline are (docs/tensor-parallelism.md); cp: samples are cut "
      "by tokens (docs/context-parallelism.md); auto and the names after it are Lightning's names "
      "for other strategies",
      one_of(strategy_names()));
  table.add("trainer.plan", &trainer.plan,
            "text of a plan, which replaces strategy and all other options that a plan sets; "
            "troika train --plan FILE sets it from a file; docs/plan.md");
  table.add("trainer.precision", &trainer.precision,
            "number type; bf16-mixed, 16-mixed: matrix products and convolutions in 16 bits; "
            "bf16-true, 16-true: parameters in 16 bits, too; docs/precision-and-memory.md",
            one_of(nn::precision_names(), nn::other_precision_names()));
  table.add("trainer.memory_format", &trainer.memory_format,
            "memory order of images and of convolution weights; auto: channels_last for precisions "
            "that compute in 16 bits, otherwise contiguous; but a run of 500 micro-batches or more "
            "times both at its start and uses the faster one (trainer.benchmark)",
            one_of(nn::memory_format_names()));
  table.add(
      "trainer.weight_layout", &trainer.weight_layout,
      "gpt: memory order of the weights of linear layers; in_out: the weights of one input are "
      "contiguous; out_in: those of one output are; auto: in_out; but a run of 500 micro-batches "
      "or more times both at its start and uses the faster one (trainer.benchmark)",
      one_of(nn::weight_layout_names()));
  table.add("trainer.sync_batchnorm", &trainer.sync_batchnorm,
            "batch norms compute their statistics over the batches of all processes");
  table.add("trainer.label_smoothing", &trainer.loss_terms.label_smoothing,
            "cross entropy of training: the share of the target's weight that all classes divide "
            "equally; evaluations stay plain",
            between(0.0, 1.0));
  table.add("trainer.z_loss", &trainer.loss_terms.z_loss,
            "cross entropy of training: adds this times the mean of logsumexp(logits)^2, which "
            "keeps logits of large language models small; PaLM takes 1e-4; evaluations stay plain",
            at_least(0.0));
  table.add(
      "trainer.recompute", &trainer.recompute,
      "which of the model's blocks drop their activations and compute them again in the backward "
      "pass; takes less memory, and up to one more forward pass; docs/precision-and-memory.md",
      recompute_policy());
  table.add("trainer.max_epochs", &trainer.max_epochs,
            "number of passes over the training data; 0: no limit if max_steps or max_time is set, "
            "otherwise 1000; -1: no limit, and max_steps or max_time must be set",
            count_from(-1));
  table.add("trainer.max_steps", &trainer.max_steps,
            "stop after this number of optimizer steps; -1: no limit", count_or("no limit"));
  table.add("trainer.min_epochs", &trainer.min_epochs,
            "callbacks and max_time do not end the run before this number of epochs",
            count_from(0));
  table.add("trainer.min_steps", &trainer.min_steps,
            "callbacks and max_time do not end the run before this number of optimizer steps",
            count_from(0));
  table.add("trainer.max_time", &trainer.max_time,
            "the run ends after this time, DD:HH:MM:SS, which includes the time before it was "
            "resumed; empty: no limit");
  table.add("trainer.limit_train_batches", &trainer.limit_train_batches,
            "batches of an epoch: a number such as 10, or a fraction such as 0.1; 1.0: all",
            number_or_share());
  table.add("trainer.limit_val_batches", &trainer.limit_val_batches,
            "batches of a validation, each as large as the batch of a training step: a number or a "
            "fraction; 0: no validation",
            number_or_share());
  table.add("trainer.limit_test_batches", &trainer.limit_test_batches, "the same for troika test",
            number_or_share());
  table.add("trainer.limit_predict_batches", &trainer.limit_predict_batches,
            "the same for troika predict", number_or_share());
  table.add("trainer.overfit_batches", &trainer.overfit_batches,
            "train and validate on this number or fraction of batches; training uses the same "
            "batches in every epoch; 0: off",
            number_or_share());
  table.add("trainer.fast_dev_run", &trainer.fast_dev_run,
            "run this number of batches of everything, without loggers and checkpoints; 0: off",
            count_or_flag());
  table.add(
      "trainer.val_check_interval", &trainer.val_check_interval,
      "batches between validations within an epoch: a number or a fraction; 1.0: only at its end",
      number_or_share());
  table.add("trainer.num_sanity_val_steps", &trainer.num_sanity_val_steps,
            "batches to validate before training, so that errors show early; -1: all",
            count_from(-1));
  table.add(
      "trainer.deterministic", &trainer.deterministic,
      "use only algorithms that give the same bits each time; an operator without one is an error");
  table.add(
      "trainer.benchmark", &trainer.benchmark,
      "time alternative implementations at the start of a run and use the fastest, for example of "
      "attention (model.attn_implementation=auto); not with trainer.deterministic");
  table.add(
      "trainer.terminate_on_nan", &trainer.terminate_on_nan,
      "if the training loss is infinite or NaN, save its batch in the run's folder and end the run "
      "with an error; with 16-mixed and 16-true the loss scaler skips such steps instead");
  table.add("trainer.accumulate_grad_batches", &trainer.accumulate_grad_batches,
            "number of batches in an optimizer step, whose gradients are summed and divided by "
            "this number; the last step of an epoch may have fewer",
            count_from(1));
  table.add("trainer.gradient_clip_val", &trainer.gradient_clip_val,
            "clip gradients to this value before each step; 0: no clipping", at_least(0.0));
  table.add("trainer.gradient_clip_algorithm", &trainer.gradient_clip_algorithm,
            "norm: clip the norm of all gradients together; value: clip each element; stage_norm: "
            "clip the norm of the gradients of each stage of a pipeline",
            one_of({"norm", "value", "stage_norm"}));
  table.add("trainer.check_val_every_n_epoch", &trainer.check_val_every_n_epoch,
            "validate after every n-th epoch, and after the last", at_least(int64_t{1}));
  table.add("trainer.log_every_n_steps", &trainer.log_every_n_steps, "steps between logged rows",
            at_least(int64_t{1}));
  table.add("trainer.loggers", &trainer.loggers, "where metrics are written, in the run's folder",
            some_of(observe::logger_names()));
  table.add("trainer.threads", &trainer.threads,
            "computing threads of each process; 0: cores / processes on this machine",
            between(int64_t{0}, int64_t{65536}));
  table.add(
      "trainer.cpu_bind", &trainer.cpu_bind,
      "where computing threads run; none: the system may move them; cores: each process has its "
      "own of the cores that the processes of this machine share; auto: none; but a run of 500 "
      "micro-batches or more times both at its start and uses the faster one (trainer.benchmark); "
      "docs/trainer.md",
      one_of(cpu_bind_names(), {{"free", "none"}, {"core", "cores"}, {"exclusive", "cores"}}));
  table.add("trainer.enable_progress_bar", &trainer.enable_progress_bar, "show progress on rank 0");
  table.add("trainer.enable_model_summary", &trainer.enable_model_summary,
            "log on rank 0 what the run is about to do (model, data, steps, strategy, memory), and "
            "its results at the end");
  table.add("trainer.memory_check", &trainer.memory_check,
            "on: refuse a run whose predicted memory does not fit into the memory of the machine "
            "or the cgroup; troika train also ends with an error if a tensor on the CPU does not "
            "fit; off: no check",
            one_of({"on", "off"}));
  table.add(
      "trainer.trace", &trainer.trace,
      "record the first 500 steps of all ranks in trace.json, for Perfetto and troika report");
  table.add("trainer.profiler", &trainer.profiler,
            "simple: a table of the times of hooks and of the phases of steps; empty: none",
            {"simple, or nothing", [](const config::Value& value) {
               const auto& name = std::get<std::string>(value);
               return name.empty() || name == "simple";
             }});
  table.add("trainer.ckpt_path", &trainer.ckpt_path,
            "checkpoint to resume from: last or best of the run (without one, a new run starts), "
            "the folder of a run or of a checkpoint; for validate, test and predict: the "
            "checkpoint or file of the weights");
}

void add_weights(config::Table& table, TrainOptions::Weights& weights) {
  table.add(
      "model.weights", &weights.path,
      "start a new run from these weights: the folder of a run, of a checkpoint, or of a model of "
      "Hugging Face, last, best, or a safetensors file, also one that troika import reads; empty: "
      "random weights");
  table.add("model.weights_sizes", &weights.sizes,
            "gpt and llama: the sizes of the model are those of model.weights, and the number of "
            "heads is that of config.json beside the file; the vocabulary may be larger than that "
            "of the data");
  table.add("model.weights_strict", &weights.strict,
            "the weights must have all tensors of the model; false: load those that fit, and log "
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
  nn::add_lora(table, options.model);
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
  parallel::add_options(table, options.server);
  parallel::add_options(table, options.downpour);
  layout::add_keys(table, options.sandblaster);
  parallel::add_options(table, options.byteps);
  parallel::add_options(table, options.ft_ddp);
  parallel::add_options(table, options.swarm);
  parallel::add_options(table, options.mesh);
  parallel::add_options(table, options.pipeline);
  add_other_names(table);
  return table;
}

std::vector<config::Setting> changed_options(const std::string& toml) {
  TrainOptions options;
  auto table = make_table(options);
  table.parse(toml, "config.toml");
  return table.changed();
}

}  // namespace troika::train
