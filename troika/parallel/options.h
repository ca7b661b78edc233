// Options of a run for data parallelism. A layout::Plan includes them.
#pragma once

#include <cstdint>

#include "troika/base/config.h"
#include "troika/comm/codec/codec.h"

namespace troika::parallel {

// Section [ddp].
struct DdpOptions {
  bool find_unused_parameters = false;
  bool static_graph = false;
  bool broadcast_buffers = true;
  comm::CodecOptions codec = {};
};

// Section [horovod].
struct HorovodOptions {
  int64_t backward_passes_per_step = 1;
  bool average_aggregated_gradients = false;
};

// Section [zero].
struct ZeroOptions {
  int64_t group_size = 0;
};

// Section [local_sgd].
struct LocalSgdOptions {
  int64_t period = 4;
  int64_t warmup_steps = 100;
};

// Section [diloco].
struct DiLoCoOptions {
  int64_t period = 500;
  int64_t warmup_steps = 0;
  double outer_lr = 0.7;
  double outer_momentum = 0.9;
};

// Binds the options to their keys. `options` must outlive the table.
void add_options(config::Table& table, DdpOptions& options);
void add_options(config::Table& table, HorovodOptions& options);
void add_options(config::Table& table, ZeroOptions& options);
void add_options(config::Table& table, LocalSgdOptions& options);
void add_options(config::Table& table, DiLoCoOptions& options);

}  // namespace troika::parallel
