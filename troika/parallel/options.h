// Options of a run for data parallelism. A layout::Plan includes them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "troika/base/config_fwd.h"
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
  int64_t stage = 0;  // of pipelines; the strategies zero1, zero2 and zero3 have their own
  int64_t group_size = 0;
};

// Section [local_sgd].
struct LocalSgdOptions {
  int64_t period = 4;
  int64_t warmup_steps = 100;
};

// Section [mesh]: sizes of axes. -1: the ranks that the other axis of the strategy leaves; if both
// are -1, no ranks are on the data axis.
struct MeshOptions {
  std::string axes = {};  // the text form of a layout::Mesh, in place of the sizes; empty: none
  int64_t pipeline = -1;
  int64_t data = -1;
  int64_t tensor = -1;
  bool sequence_parallel = false;       // of tp and 3d: see TensorOptions::sequence
  bool tensor_overlap = false;          // of tp, 3d and downpour: see Lanes
  int64_t context = -1;                 // of cp, tp and 3d; -1 with tp and 3d: 1
  std::string context_method = "ring";  // of layout::context_method_names()
};

// Section [pipeline].
struct PipelineSection {
  int64_t micro_batches = 0;  // per step and replica; 0: see resolve_plan()
  std::string schedule = "1f1b";
  int64_t chunks = 0;  // stages per rank; 0: the schedule's default
  std::string cut = {};
  std::string cut_by = "parameters";  // of which stages have about equal amounts, without a cut
  double activations = 0;             // of schedule auto: the limit of each rank; 0: its default
  bool vertical_sync = false;         // of strategy pipedream
  bool stash_weights = true;          // of strategy pipedream
  int64_t in_flight = 1;              // without flushes: see layout::AsynchronousPipeline
  std::string warm_up = "runtime";    // without flushes: of layout::warm_up_names()
  bool steps_by_replicas = false;     // of strategy pipedream; the same
};

// Section [diloco].
struct DiLoCoOptions {
  int64_t inner_steps = 500;
  int64_t warmup_steps = 0;
  double outer_lr = 0.7;
  double outer_momentum = 0.9;
  int64_t fragments = 1;
  int64_t delay = 0;  // inner steps
  double mixing = 0;  // of a replica's own weights
  std::string codec = "none";
};

// Section [server], of strategies parameter_server, downpour and sandblaster; byteps has `servers`
// and `limit_seconds`.
struct ServerSection {
  std::string consistency = "sequential";  // or bounded, eventual
  int64_t delay = 0;                       // steps, of bounded
  int64_t servers = 0;                     // 0: one in each process
  int64_t replicas = 0;                    // copies of each range of parameters
  std::string push_filters = {};           // texts for server::parse_filters()
  std::string pull_filters = {};
  double limit_seconds = 10;

  bool operator==(const ServerSection&) const = default;
};

// Section [downpour], of strategy downpour.
struct DownpourSection {
  int64_t n_fetch = 1;    // steps
  int64_t n_push = 1;     // steps
  double local_rate = 1;  // a multiple of the learning rate
  bool overlap = true;
  int64_t warm_start_steps = 0;  // of replica 0, alone
};

// Section [byteps], of strategy byteps.
struct BytePsSection {
  int64_t partition_bytes = 4'096'000;
  int64_t credit_bytes = 0;  // 0: no limit
  bool priorities = true;
  std::string links = {};
  bool cross_barrier = false;
  bool asynchronous = false;
  std::string local_sums = "plain";
  double momentum = 0;
  std::string dither_norm = "max";
};

// Section [ft_ddp], of strategy ft_ddp. The names are TorchFT's.
struct FtDdpSection {
  int64_t min_replicas = 1;
  double join_timeout_seconds = 60;
  double heartbeat_timeout_seconds = 5;
};

// Section [swarm], of strategy swarm (docs/swarm.md).
struct SwarmSection {
  std::string run = "swarm";            // the same on all peers
  std::vector<std::string> peers = {};  // HOST:PORT
  std::string listen = "127.0.0.1:0";   // HOST:PORT; port 0: any free one
  std::string announce = {};            // HOST:PORT at which others reach it; empty: `listen`
  std::string mode = "node";            // or client, auxiliary
  int64_t min_peers = 1;                // at the start
  std::string aggregation = "mean";     // or centred_clip
  int64_t target_group_size = 0;        // peers; 0: one group of all
  std::string grad_compression = "none";
  int64_t grad_compression_threshold = 65536;  // elements
  bool delay_optimizer_step = false;
  bool use_local_updates = false;    // outer steps, of the values in [diloco]
  double bandwidth_megabits = 0;     // per second, each way; 0: not told
  double max_upload_megabits = 0;    // per second; 0: no limit
  double max_download_megabits = 0;  // per second; 0: no limit
  double processor_share = 1;        // part of the time in which it computes
  std::string pause_file = {};       // it pauses while this file exists; empty: never
  double max_load_of_others = 1;     // share of the processors above which it pauses
  std::string identity = {};         // a file; empty: a new identity each time
  std::string authority = {};        // KEY@HOST:PORT; empty: all that hold the secret
  double discovery_seconds = 3;
  double matchmaking_seconds = 5;
  double averaging_seconds = 60;
  double sender_timeout_seconds = 30;
};

// Binds the options to their keys. `options` must outlive the table.
void add_options(config::Table& table, DdpOptions& options);
void add_options(config::Table& table, HorovodOptions& options);
void add_options(config::Table& table, ZeroOptions& options);
void add_options(config::Table& table, LocalSgdOptions& options);
void add_options(config::Table& table, DiLoCoOptions& options);
void add_options(config::Table& table, ServerSection& options);
void add_options(config::Table& table, DownpourSection& options);
void add_options(config::Table& table, BytePsSection& options);
void add_options(config::Table& table, FtDdpSection& options);
void add_options(config::Table& table, SwarmSection& options);
void add_options(config::Table& table, MeshOptions& options);
void add_options(config::Table& table, PipelineSection& options);

}  // namespace troika::parallel
