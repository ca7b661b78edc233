// Everything a training run can be told, as plain data, and the one table of it that drives
// parsing, defaults, validation, help and docs/configuration.md.
#pragma once

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
    int64_t seed = 42;
  } run;

  struct Trainer {
    int64_t devices = -1;
    std::string strategy = "ddp";
    std::string precision = "32";
    bool sync_batchnorm = false;
    std::string recompute = "none";
    int64_t max_epochs = 1;
    int64_t max_steps = -1;
    int64_t accumulate_grad_batches = 1;
    double gradient_clip_val = 0;
    std::string gradient_clip_algorithm = "norm";
    int64_t check_val_every_n_epoch = 1;
    int64_t log_every_n_steps = 50;
    std::vector<std::string> loggers = {"csv", "tensorboard"};
    int64_t threads = 0;
    bool enable_progress_bar = true;
    bool trace = false;
    std::string ckpt_path;
  } trainer;

  struct Checkpoint {
    bool enabled = true;
    int64_t every_n_epochs = 1;
    int64_t every_n_train_steps = 0;
    bool async = false;
  } checkpoint;

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
};

// Binds every option to its key; `options` must outlive the table.
config::Table make_table(TrainOptions& options);

}  // namespace troika::train
