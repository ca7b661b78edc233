// How a run trains its model on many devices, as plain data with a text form. What is learned, for
// how long and on which data is no part of it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "troika/layout/mesh.h"
#include "troika/layout/schedule.h"

namespace troika::layout {

// How gradients that are too large for a message are compressed: ddp.hook and its options
// (docs/data-parallelism.md).
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

// How replicas along the data axis stay the same model.
enum class ExchangeMethod {
  all_reduce,  // every step averages gradients; each rank holds all parameters and states
  zero,        // as all_reduce, with states, gradients and parameters shared out among ranks
  local_steps  // ranks step by themselves, and their parameters are averaged now and then
};

struct GradientExchange {
  ExchangeMethod method = ExchangeMethod::all_reduce;
  int64_t bucket_bytes = int64_t{25} << 20;
  int64_t first_bucket_bytes = int64_t{1} << 20;  // of the bucket that is averaged first
  bool find_unused_parameters = false;
  bool static_graph = false;
  bool broadcast_buffers = true;

  // ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054, section 5) shares out 1: optimizer states;
  // 2: gradients, too; 3: parameters, too. Other methods have 0.
  int64_t zero_stage = 0;
  // Consecutive ranks of the data axis that share one model out; 0: all of them.
  int64_t zero_group = 0;

  // local_steps has steps between averages, and steps that average gradients first.
  int64_t period = 1;
  int64_t warmup_steps = 0;
  // The averages are gradients of an outer SGD with Nesterov momentum (DiLoCo, Douillard et al.
  // 2023, arXiv 2311.08105).
  bool outer_step = false;
  double outer_lr = 0.7;
  double outer_momentum = 0.9;

  bool operator==(const GradientExchange&) const = default;
};

// Names of schedules that are not in schedule_table(): each micro-batch forward and backward in
// turns on a rank with the whole model, and one that the plan has itself.
inline constexpr const char* kOneStageSchedule = "one_stage";
inline constexpr const char* kCustomSchedule = "custom";

struct Plan {
  // The strategy that it was made of, for messages.
  std::string strategy = "plan";
  // One process for each rank.
  Mesh mesh = {};
  // Threads of each process that train a replica each; 0: the process trains one itself.
  int64_t threads = 0;
  // Where the model is cut into stages, by names of blocks; empty: one stage.
  std::string cut = {};
  // The order of forward and backward passes: one of schedule_table(), kOneStageSchedule or
  // kCustomSchedule; see schedule_of().
  std::string schedule = kOneStageSchedule;
  int64_t chunks = 0;         // stages on each rank; 0: as many as the schedule wants
  std::string actions = {};   // of kCustomSchedule: the text of a Schedule, or of its passes
  int64_t micro_batches = 1;  // of an optimizer step on each replica
  // A step's gradient is the sum over its micro-batches, or their mean.
  bool sums_micro_batches = false;
  GradientExchange exchange = {};
  Compression compression = {};
  std::string precision = "32";    // as trainer.precision
  std::string recompute = "none";  // as trainer.recompute
  std::string offload_activations = {};
  std::string offload_optimizer = {};

  // Reads the text form, in TOML with a section for each part; keys that are missing have the
  // defaults above. `name` is the file's, for errors; `world` is the number of ranks, if it is
  // known, for an axis of size -1. Throws Error(usage) with the line for what is no TOML, an
  // unknown key (naming the nearest), a wrong type or a value out of its range, and for a mesh that
  // Mesh::parse() refuses.
  static Plan parse(std::string_view toml, std::string_view name, int world = 0);
  // Every key with a comment on its meaning.
  std::string text() const;
  // Throws Error(usage) for parts that contradict each other: ZeRO's stage and group, and threads,
  // with methods and meshes that cannot have them.
  void verify() const;

  // After a step all ranks have the same parameters, bit by bit.
  bool keeps_replicas_equal() const { return exchange.method != ExchangeMethod::local_steps; }
  // Every rank has all parameters and all states of the optimizer.
  bool holds_all_states() const { return exchange.method == ExchangeMethod::all_reduce; }
  // Ranks that share one model out; 1 without ZeRO.
  int64_t sharing_ranks() const;

  bool operator==(const Plan&) const = default;
};

// The actions of each rank of the pipeline axis, by the schedule's name; with ZeRO stage 3, a
// gather before the first pass of each stage. Throws Error(usage) for a schedule that cannot run on
// so many ranks and micro-batches, and for custom actions that Schedule::verify() refuses.
Schedule schedule_of(const Plan& plan);

// Says what a plan means, a line for each part. Throws what verify() does.
std::string explain(const Plan& plan);

}  // namespace troika::layout
