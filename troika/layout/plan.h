// A plan: how a run distributes its training over devices, as plain data with a text form. It does
// not include the model, the data or the length of the run.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "troika/layout/mesh.h"
#include "troika/layout/outer_exchange.h"
#include "troika/layout/sandblaster_exchange.h"
#include "troika/layout/schedules/schedule.h"
#include "troika/layout/schedules/stage_weights.h"
#include "troika/layout/summation.h"

namespace troika::layout {

struct ScheduleRow;

// Compression of gradients: ddp.hook and its options (docs/data-parallelism.md).
struct Compression {
  std::string codec = "none";
  bool error_feedback = true;
  int64_t powersgd_rank = 1;
  int64_t powersgd_start_step = 10;
  bool powersgd_warm_start = true;
  double topk_density = 0.01;
  int64_t int8_block = 256;

  bool operator==(const Compression&) const = default;
};

// The method that keeps the replicas along the data axis equal.
enum class ExchangeMethod {
  all_reduce,   // averages gradients every step; each rank holds all parameters and states
  summation,    // as all_reduce, by summation servers
  zero,         // as all_reduce, with states, gradients and parameters sharded
  local_steps,  // ranks step independently; parameters are averaged from time to time
  servers,      // parameter servers step the parameters with the ranks' gradients; ranks pull them
  downpour,     // as servers, by replicas that never wait for each other between cuts
  sandblaster,  // servers keep the vectors of L-BFGS, whose gradients replicas compute in portions
  fault_tolerant,  // as all_reduce, by replicas that are in runs of their own and may be lost
  collaborative  // as all_reduce, by the peers of a swarm, whose steps have as many samples as come
};

// For ExchangeMethod::servers, downpour and sandblaster (docs/parameter-server.md).
struct ServerExchange {
  // sequential: a step begins when all ranks have finished the one before; bounded: `delay` steps
  // earlier; eventual: at once.
  std::string consistency = "sequential";
  int64_t delay = 0;
  int64_t count = 0;     // of servers, server i in the process of rank i % ranks; 0: one a rank
  int64_t replicas = 0;  // copies of each range of parameters besides its master's
  std::string push_filters = {};  // of gradients, as server::parse_filters() reads them
  std::string pull_filters = {};  // of parameters
  double limit_seconds = 10;      // a process that is silent for this time is lost

  bool operator==(const ServerExchange&) const = default;
};

// For ExchangeMethod::downpour (docs/downpour.md): Downpour SGD (Dean et al., NIPS 2012, section
// 4.1).
struct DownpourExchange {
  int64_t n_fetch = 1;  // steps of a replica from one fetch of the parameters to the next one
  int64_t n_push = 1;   // steps of a replica whose gradients are added up for one push
  // The rate of a replica's own SGD between fetches, as a multiple of the servers' rate. 0: the
  // replica does not step by itself.
  double local_rate = 1;
  // Whether a replica computes while its parameters are fetched.
  bool overlap = true;
  int64_t warm_start_steps = 0;  // steps that replica 0 makes before the others begin

  bool operator==(const DownpourExchange&) const = default;
};

struct GradientExchange {
  ExchangeMethod method = ExchangeMethod::all_reduce;
  int64_t bucket_bytes = int64_t{25} << 20;
  int64_t first_bucket_bytes = int64_t{1} << 20;  // for the bucket that is averaged first
  bool find_unused_parameters = false;
  bool static_graph = false;
  bool broadcast_buffers = true;

  // ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054, section 5). 1: shards optimizer states; 2:
  // gradients too; 3: parameters too. 0 for other methods.
  int64_t zero_stage = 0;
  // The number of consecutive ranks of the data axis that share one copy of the model; 0: all of
  // them.
  int64_t zero_group = 0;

  // For local_steps: the number of steps between averages, and the number of warm-up steps, which
  // average gradients.
  int64_t period = 1;
  int64_t warmup_steps = 0;
  OuterExchange outer = {};  // for local_steps: the averages are gradients of an outer SGD

  ServerExchange servers = {};
  DownpourExchange downpour = {};
  SandblasterExchange sandblaster = {};
  SummationExchange summation = {};  // for ExchangeMethod::summation (docs/byteps.md)

  bool operator==(const GradientExchange&) const = default;
};

// For schedules without flushes; see AsynchronousPipeline.
struct WithoutFlushes {
  int64_t in_flight = 1;
  std::string warm_up = "runtime";  // of warm_up_names()
  bool steps_by_replicas = false;

  bool operator==(const WithoutFlushes&) const = default;
};

// Where tensors go that a run keeps off its devices; empty: nowhere.
struct Offload {
  std::string activations = {};  // a folder, or host
  std::string optimizer = {};    // a folder for the states of the optimizer

  bool operator==(const Offload&) const = default;
};

// Names of schedules that are not in schedule_table(): each rank has the whole model (one_stage()),
// or the plan itself contains the schedule's actions.
inline constexpr const char* kOneStageSchedule = "one_stage";
inline constexpr const char* kCustomSchedule = "custom";
// Stands for a custom schedule that is made from measured times when a run starts.
inline constexpr const char* kAutomaticSchedule = "auto";

struct ModelStages {
  // The blocks of each stage by name (layout::parse_cut()), also of a single one; a run with a
  // model of other blocks is refused. Empty: one stage, or stages of about equal size, of any
  // model.
  std::string cut = {};
  // The number of parameters of the model that the plan was searched for; a run with a model of
  // another number is refused. 0: any model.
  int64_t parameters = 0;
  // Whether each rank of a tensor axis has 1/t of the tokens between the cut layers of its stages
  // (sequence parallelism: Korthikanti et al. 2022, arXiv 2205.05198).
  bool sequence_parallel = false;
  // Whether two micro-batches run forward at the same time, so that a rank computes one of them
  // while it waits for the other's collectives over the tensor axis. A pipeline's schedule is
  // that of order_in_pairs().
  bool tensor_overlap = false;
  // How the ranks of a context axis compute attention: of context_method_names().
  std::string context_method = "ring";

  bool operator==(const ModelStages&) const = default;
};

struct Plan {
  // The strategy that the plan was made from, for messages.
  std::string strategy = "plan";
  // One process per rank.
  Mesh mesh = {};
  // Threads of each process that each train a replica; 0: the process trains one replica itself.
  int64_t threads = 0;
  ModelStages stages = {};
  // The schedule of forward and backward passes: one of schedule_table() or of
  // asynchronous_schedule_names(), kOneStageSchedule or kCustomSchedule; see schedule_of().
  std::string schedule = kOneStageSchedule;
  int64_t chunks = 0;         // stages per rank; 0: the schedule's default
  std::string actions = {};   // for kCustomSchedule: the text of a Schedule, or of its passes
  int64_t micro_batches = 1;  // per optimizer step and replica
  WithoutFlushes without_flushes = {};
  // Whether a step's gradient is the sum over its micro-batches; otherwise it is the mean.
  bool sums_micro_batches = false;
  GradientExchange exchange = {};
  Compression compression = {};
  std::string precision = "32";    // trainer.precision
  std::string recompute = "none";  // trainer.recompute
  Offload offload = {};

  // Reads the text form, TOML with a section for each part; missing keys have the defaults above.
  // `name` is the file's name, for errors; `world` is the number of ranks, for an axis of size -1,
  // or 0 if unknown. Throws Error(usage) with the line for invalid TOML, an unknown key (naming the
  // nearest known one), a wrong type or a value out of range, and for a mesh that Mesh::parse()
  // refuses, as one whose other axes do not divide `world`.
  static Plan parse(std::string_view toml, std::string_view name, int world = 0);
  // Returns all keys, each with a comment.
  std::string text() const;
  // Throws Error(usage) if ZeRO's stage or group, threads, values of a tensor or context axis, of
  // `servers`, `downpour`, `sandblaster`, `summation` or `outer`, or a schedule without flushes are
  // combined with a method, a mesh, micro-batches or each other in a way that is not supported.
  void verify() const;

  // Whether all ranks have bitwise the same parameters after each step.
  bool keeps_replicas_equal() const {
    return averages_whole_gradients() || exchange.method == ExchangeMethod::zero;
  }
  // Whether each step gives every rank the mean of all gradients.
  bool averages_whole_gradients() const {
    return exchange.method == ExchangeMethod::all_reduce ||
           (exchange.method == ExchangeMethod::summation && !exchange.summation.asynchronous);
  }
  StageWeights weights() const { return weights_of_schedule(schedule); }
  // Whether stages step by themselves, without a flush before each step.
  bool is_asynchronous() const { return weights() != StageWeights::synchronous; }
  AsynchronousPipeline asynchronous() const;
  // Whether parameter servers step the parameters.
  bool has_servers() const {
    return exchange.method == ExchangeMethod::servers ||
           exchange.method == ExchangeMethod::downpour ||
           exchange.method == ExchangeMethod::sandblaster;
  }
  // Whether each rank trains a replica in a run of its own, and may be lost.
  bool trains_replicas() const {
    return exchange.method == ExchangeMethod::downpour ||
           exchange.method == ExchangeMethod::sandblaster;
  }
  // Whether each step is one on all samples, which replicas share out by themselves.
  bool steps_on_all_samples() const { return exchange.method == ExchangeMethod::sandblaster; }
  // Whether every rank has all parameters and all states of the optimizer.
  bool holds_all_states() const {
    return averages_whole_gradients() && mesh.size(Axis::pipeline) == 1;
  }
  // Returns the number of ranks that share one copy of the stages at this place of the pipeline
  // axis; 1 without ZeRO.
  int64_t sharing_ranks(int place) const;
  // The most at any place.
  int64_t sharing_ranks() const;

  bool operator==(const Plan&) const = default;
};

// Returns the row of schedule_table() in whose order a plan's stages run their passes; for
// schedules without flushes, that of kAsynchronousOrder. Throws Error(usage) for other names that
// are not in the table.
const ScheduleRow& row_of(const Plan& plan);

// Returns the actions of each rank of the pipeline axis, by the schedule's name; with ZeRO stage 3,
// including a gather before the first pass of each stage. That of an asynchronous plan has the
// micro-batches of one step, as if a drain came before and after it. Throws Error(usage) for a
// schedule that does not support these numbers of ranks and micro-batches, and for custom actions
// that Schedule::verify() refuses.
Schedule schedule_of(const Plan& plan);

// Returns the same as a run has it: with tensor_overlap, forward passes that take turns start
// together (join_pairs()), receive their inputs before, and send their outputs after both. Throws
// the errors of schedule_of().
Schedule schedule_of_run(const Plan& plan);

// Describes a plan, one line per part. Throws the errors of verify().
std::string explain(const Plan& plan);

}  // namespace troika::layout
