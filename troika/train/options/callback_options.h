// The options of the callbacks that have sections of their own.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "troika/base/config_fwd.h"

namespace troika::train {

// Section [checkpoint].
struct ModelCheckpointOptions {
  bool enabled = true;
  int64_t every_n_epochs = 1;
  int64_t every_n_train_steps = 0;
  std::string monitor = {};
  std::string mode = "min";
  int64_t save_top_k = 1;
  std::string save_last = "true";
  std::string save_on_train_epoch_end = "auto";
  std::string train_time_interval = {};
  std::string async = "auto";
  bool weights_only = false;
  bool on_exception = false;
};

// Section [early_stopping]. NaN means no threshold.
struct EarlyStoppingOptions {
  std::string monitor;
  std::string mode = "min";
  int64_t patience = 3;
  double min_delta = 0;
  bool strict = true;
  bool check_finite = true;
  double stopping_threshold = std::numeric_limits<double>::quiet_NaN();
  double divergence_threshold = std::numeric_limits<double>::quiet_NaN();
};

// Section [timer].
struct TimerOptions {
  std::string interval = "step";
  bool verbose = false;
};

// Section [ema].
struct EmaOptions {
  bool enabled = false;
  double decay = 0.999;
  int64_t update_every_n_steps = 1;
  int64_t update_starting_at_step = 0;
  bool use_buffers = true;
};

// Section [swa].
struct SwaOptions {
  double swa_lrs = 0;
  std::string swa_epoch_start = "0.8";
  int64_t annealing_epochs = 10;
  std::string annealing_strategy = "cos";
};

// Section [statistics].
struct StatisticsOptions {
  int64_t every_n_steps = 0;
  std::vector<std::string> of = {"gradients", "weights"};
  std::string per = "parameter";
};

// Section [throughput].
struct ThroughputOptions {
  bool enabled = false;
  double available_flops = 0;
};

// Bind the options to their keys. `options` must outlive the table.
void add_options(config::Table& table, ModelCheckpointOptions& options);
void add_options(config::Table& table, EarlyStoppingOptions& options);
void add_options(config::Table& table, TimerOptions& options);
void add_options(config::Table& table, EmaOptions& options);
void add_options(config::Table& table, SwaOptions& options);
void add_options(config::Table& table, StatisticsOptions& options);
void add_options(config::Table& table, ThroughputOptions& options);

}  // namespace troika::train
