// Everything a training run can be told, as plain data, and the one table of it that drives
// parsing, defaults, validation, help and docs/configuration.md.
#pragma once

#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "troika/base/config.h"
#include "troika/data/make_dataset.h"
#include "troika/nn/zoo.h"
#include "troika/optim/optimizer.h"
#include "troika/optim/schedule.h"
#include "troika/parallel/data_parallel.h"

namespace troika::train {

struct TrainOptions {
  struct Run {
    std::string name = "run";
    std::string folder = "runs";
    bool overwrite = false;
    int64_t seed = 42;
  } run;

  struct Trainer {
    std::string accelerator = "auto";
    int64_t devices = -1;
    int64_t num_nodes = -1;
    std::string strategy = "ddp";
    std::string plan = {};
    std::string precision = "32";
    std::string memory_format = "auto";
    bool sync_batchnorm = false;
    std::string recompute = "none";
    int64_t max_epochs = 0;
    int64_t max_steps = -1;
    int64_t min_epochs = 0;
    int64_t min_steps = 0;
    std::string max_time = {};
    std::string limit_train_batches = "1.0";
    std::string limit_val_batches = "1.0";
    std::string limit_test_batches = "1.0";
    std::string limit_predict_batches = "1.0";
    std::string overfit_batches = "0";
    int64_t fast_dev_run = 0;
    std::string val_check_interval = "1.0";
    int64_t num_sanity_val_steps = 2;
    bool deterministic = false;
    bool benchmark = true;
    bool terminate_on_nan = true;
    int64_t accumulate_grad_batches = 1;
    double gradient_clip_val = 0;
    std::string gradient_clip_algorithm = "norm";
    int64_t check_val_every_n_epoch = 1;
    int64_t log_every_n_steps = 50;
    std::vector<std::string> loggers = {"csv", "tensorboard"};
    int64_t threads = 0;
    bool enable_progress_bar = true;
    bool enable_model_summary = true;
    std::string memory_check = "on";
    bool trace = false;
    std::string profiler = {};
    std::string ckpt_path;
  } trainer;

  struct Offload {
    std::string activations = "";
  } offload;

  struct Checkpoint {
    bool enabled = true;
    int64_t every_n_epochs = 1;
    int64_t every_n_train_steps = 0;
    std::string monitor = {};
    std::string mode = "min";
    int64_t save_top_k = 1;
    std::string save_last = "true";
    std::string save_on_train_epoch_end = "auto";
    std::string train_time_interval = {};
    bool async = false;
    bool weights_only = false;
    bool on_exception = false;
  } checkpoint;

  // A threshold of NaN is none.
  struct EarlyStopping {
    std::string monitor;
    std::string mode = "min";
    int64_t patience = 3;
    double min_delta = 0;
    bool strict = true;
    bool check_finite = true;
    double stopping_threshold = std::numeric_limits<double>::quiet_NaN();
    double divergence_threshold = std::numeric_limits<double>::quiet_NaN();
  } early_stopping;

  struct Timer {
    std::string interval = "step";
    bool verbose = false;
  } timer;

  struct Ema {
    bool enabled = false;
    double decay = 0.999;
    int64_t update_every_n_steps = 1;
    int64_t update_starting_at_step = 0;
    bool use_buffers = true;
  } ema;

  struct Swa {
    double swa_lrs = 0;
    std::string swa_epoch_start = "0.8";
    int64_t annealing_epochs = 10;
    std::string annealing_strategy = "cos";
  } swa;

  struct Statistics {
    int64_t every_n_steps = 0;
    std::vector<std::string> of = {"gradients", "weights"};
    std::string per = "parameter";
  } statistics;

  struct Throughput {
    bool enabled = false;
    double available_flops = 0;
  } throughput;

  // In what fit() writes: those of the module that it trained, with an empty name unless
  // nn::make_model() made that.
  nn::ModelOptions model;

  struct Data : data::DataOptions {
    int64_t batch_size = 32;
    int64_t global_batch_size = 0;
    int64_t workers = 1;
    int64_t prefetch = 4;
  } data;

  optim::OptimizerOptions optimizer;
  optim::ScheduleOptions schedule;

  struct Comm {
    std::string backend = "auto";
    std::string protection = "none";
    int64_t streams = 1;
    std::string algorithm = "auto";
    double timeout_seconds = 300;
    double stall_warning_seconds = 30;
    double join_timeout_seconds = 60;
    double bucket_megabytes = 25;
    double first_bucket_megabytes = 1;
  } comm;

  // Sizes of buckets are those of `comm`.
  parallel::DataParallelOptions ddp;

  struct Horovod {
    int64_t backward_passes_per_step = 1;
    bool average_aggregated_gradients = false;
  } horovod;

  struct Zero {
    int64_t group_size = 0;
  } zero;

  struct LocalSgd {
    int64_t period = 4;
    int64_t warmup_steps = 100;
  } local_sgd;

  struct DiLoCo {
    int64_t period = 500;
    int64_t warmup_steps = 0;
    double outer_lr = 0.7;
    double outer_momentum = 0.9;
  } diloco;

  // The weights that a new run begins from.
  struct Weights {
    std::string path = {};
    bool strict = true;
  } weights;
};

// run.folder/run.name. A run writes there unless RunFolder::claim() decides otherwise. Throws
// Error(usage) for a run.name that is empty, absolute, or leads out of run.folder.
std::filesystem::path run_folder(const TrainOptions& options);

// Binds every option to its key; `options` must outlive the table. Where options.model.name is
// empty, the table is without the sizes of models.
config::Table make_table(TrainOptions& options);

}  // namespace troika::train
