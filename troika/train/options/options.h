// All options of a training run, as plain data, and the table from which parsing, defaults,
// validation, help and docs/configuration.md derive. Each room declares its own options and binds
// them to their keys.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "troika/base/config_fwd.h"
#include "troika/comm/options.h"
#include "troika/data/options.h"
#include "troika/layout/sandblaster_exchange.h"
#include "troika/nn/loss_terms.h"
#include "troika/nn/options.h"
#include "troika/optim/options.h"
#include "troika/parallel/options.h"
#include "troika/train/options/callback_options.h"

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
    std::string weight_layout = "auto";
    bool sync_batchnorm = false;
    nn::LossTerms loss_terms = {};
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
    std::string cpu_bind = "auto";
    bool enable_progress_bar = true;
    bool enable_model_summary = true;
    std::string memory_check = "on";
    bool trace = false;
    std::string profiler = {};
    std::string ckpt_path;
  } trainer;

  ModelCheckpointOptions checkpoint;
  EarlyStoppingOptions early_stopping;
  TimerOptions timer;
  EmaOptions ema;
  SwaOptions swa;
  StatisticsOptions statistics;
  ThroughputOptions throughput;

  // In files that fit() writes: the options of the trained module, with an empty name unless
  // nn::make_model() made the module.
  nn::ModelOptions model;
  nn::OffloadOptions offload;
  data::RunDataOptions data;
  optim::OptimizerOptions optimizer;
  optim::ScheduleOptions schedule;

  comm::CommOptions comm;
  parallel::DdpOptions ddp;
  parallel::HorovodOptions horovod;
  parallel::ZeroOptions zero;
  parallel::LocalSgdOptions local_sgd;
  parallel::DiLoCoOptions diloco;
  parallel::ServerSection server;
  parallel::DownpourSection downpour;
  layout::SandblasterExchange sandblaster;
  parallel::BytePsSection byteps;
  parallel::FtDdpSection ft_ddp;
  parallel::SwarmSection swarm;
  parallel::MeshOptions mesh;
  parallel::PipelineSection pipeline;

  // The initial weights of a new run.
  struct Weights {
    std::string path = {};
    bool strict = true;
    bool sizes = false;
  } weights;
};

// Returns run.folder/run.name, where a run writes unless RunFolder::claim() decides otherwise.
// Throws Error(usage) for a run.name that is empty, absolute, or leads out of run.folder.
std::filesystem::path run_folder(const TrainOptions& options);

// Binds every option to its key; `options` must outlive the table. If options.model.name is empty,
// the table omits the sizes of models.
config::Table make_table(TrainOptions& options);

// The options that `toml` sets to non-default values. Throws the errors of Table::parse().
std::vector<config::Setting> changed_options(const std::string& toml);

}  // namespace troika::train
