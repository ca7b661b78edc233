#include "troika/train/options/resolve_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "troika/base/config.h"
#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/train/options/outer_strategies.h"
#include "troika/train/options/pipeline_mesh.h"
#include "troika/train/options/server_strategies.h"

namespace troika::train {

namespace {

using layout::Axis;
using layout::Cluster;
using layout::ExchangeMethod;
using layout::Plan;
using layout::StageWeights;

constexpr const char* kPlanKey = "trainer.plan";
constexpr const char* kPipeline = "pipeline";

int64_t mebibytes(double count) {
  return static_cast<int64_t>(count * (1 << 20));
}

void all_reduce(Plan&, const TrainOptions&, const Cluster&) {}

void find_unused(Plan& plan, const TrainOptions&, const Cluster&) {
  plan.exchange.find_unused_parameters = true;
}

// Sums the micro-batches' gradients unless horovod.average_aggregated_gradients is set.
void horovod(Plan& plan, const TrainOptions& options, const Cluster&) {
  const int64_t micro_batches = options.horovod.backward_passes_per_step;
  if (micro_batches == 1) return;
  if (plan.micro_batches > 1) {
    throw Error("train", ErrorKind::usage,
                {.what = "trainer.accumulate_grad_batches and horovod.backward_passes_per_step "
                         "both accumulate",
                 .got = fmt::format("{} and {}", plan.micro_batches, micro_batches),
                 .expected = "one of them above 1"});
  }
  plan.micro_batches = micro_batches;
  plan.sums_micro_batches = !options.horovod.average_aggregated_gradients;
}

void shard(Plan& plan, const TrainOptions& options, int64_t zero_stage) {
  plan.exchange.method = ExchangeMethod::zero;
  plan.exchange.zero_stage = zero_stage;
  plan.exchange.zero_group = options.zero.group_size;
}

template <int stage>
void zero(Plan& plan, const TrainOptions& options, const Cluster&) {
  shard(plan, options, stage);
}

// Returns the number of ranks of each host. Each host's ranks must be consecutive, and all hosts
// must have the same number.
int ranks_of_host(const Cluster& cluster) {
  if (cluster.devices.empty()) return 1;
  std::vector<std::pair<int, int>> hosts;  // host and number of ranks of each stretch of ranks
  for (const auto& devices : cluster.devices) {
    if (hosts.empty() || hosts.back().first != devices.host) hosts.emplace_back(devices.host, 0);
    hosts.back().second += devices.count;
  }
  std::set<int> seen;
  for (const auto& [host, ranks] : hosts) {
    if (seen.insert(host).second && ranks == hosts.front().second) continue;
    throw Error("train", ErrorKind::usage,
                {.what = "strategy hybrid_shard shares out within nodes",
                 .got = "nodes of different numbers of ranks, or ranks in turns",
                 .expected = "consecutive ranks, equally many on each node",
                 .hint = "set zero.group_size"});
  }
  return hosts.front().second;
}

// FSDP's name for ZeRO stage 3 within nodes.
void hybrid_shard(Plan& plan, const TrainOptions& options, const Cluster& cluster) {
  zero<3>(plan, options, cluster);
  if (plan.exchange.zero_group == 0) plan.exchange.zero_group = ranks_of_host(cluster);
}

void local_sgd(Plan& plan, const TrainOptions& options, const Cluster&) {
  plan.exchange.method = ExchangeMethod::local_steps;
  plan.exchange.period = options.local_sgd.period;
}

void post_local_sgd(Plan& plan, const TrainOptions& options, const Cluster& cluster) {
  local_sgd(plan, options, cluster);
  plan.exchange.warmup_steps = options.local_sgd.warmup_steps;
}

// Each replica is a run of one process (docs/fault-tolerance.md).
void fault_tolerant(Plan& plan, const TrainOptions&, const Cluster&) {
  plan.exchange.method = ExchangeMethod::fault_tolerant;
}

void threads(Plan& plan, const TrainOptions& options, const Cluster&) {
  plan.threads = std::max<int64_t>(1, options.trainer.devices);
}

// Lightning's name (before 1.9) for dp within each node and ddp between nodes.
void ddp2(Plan& plan, const TrainOptions& options, const Cluster& cluster) {
  threads(plan, options, cluster);
  for (size_t host = 0; host < cluster.hosts.size(); ++host) {
    int ranks = 0;
    for (const auto& devices : cluster.devices) {
      if (devices.host == static_cast<int>(host)) ranks += devices.count;
    }
    if (ranks <= 1) continue;
    throw Error("train", ErrorKind::usage,
                {.what = "strategy ddp2 has one process on each machine",
                 .got = fmt::format("{} on machine {}", ranks, host),
                 .expected = "one of trainer.devices threads",
                 .hint = "ddp takes several processes a machine"});
  }
}

void set_mesh(Plan& plan, const TrainOptions& options, layout::Mesh mesh) {
  plan.mesh = std::move(mesh);
  const bool cuts_layers = plan.mesh.size(Axis::tensor) > 1;  // the only rank has all tokens
  plan.stages.sequence_parallel = cuts_layers && options.mesh.sequence_parallel;
  plan.stages.tensor_overlap = cuts_layers && options.mesh.tensor_overlap;
  if (plan.mesh.size(Axis::context) > 1) plan.stages.context_method = options.mesh.context_method;
}

// The loader's batches are the micro-batches, as in gradient accumulation. Expects the schedule of
// a pipeline without flushes; its default is their least number.
void cut_model(Plan& plan, const TrainOptions& options, layout::Mesh mesh) {
  set_mesh(plan, options, std::move(mesh));
  plan.chunks = options.pipeline.chunks;
  plan.stages.cut = options.pipeline.cut;
  if (options.zero.stage > 0) shard(plan, options, options.zero.stage);
  const int64_t micro_batches = options.pipeline.micro_batches;
  if (micro_batches > 0 && plan.micro_batches > 1) {
    throw Error("train", ErrorKind::usage,
                {.what = "trainer.accumulate_grad_batches and pipeline.micro_batches both "
                         "accumulate",
                 .got = fmt::format("{} and {}", plan.micro_batches, micro_batches),
                 .expected = "one of them"});
  }
  if (micro_batches > 0) {
    plan.micro_batches = micro_batches;
  } else if (plan.micro_batches == 1) {
    plan.micro_batches = plan.is_asynchronous() ? plan.asynchronous().least_micro_batches()
                                                : 2 * plan.mesh.size(Axis::pipeline);
  }
}

// A strategy that is named after a schedule uses this schedule and ignores pipeline.schedule.
void pipeline(Plan& plan, const TrainOptions& options, const Cluster& cluster) {
  cut_model(plan, options, pipeline_mesh(options, cluster.ranks()));
  plan.schedule = plan.strategy == kPipeline ? options.pipeline.schedule : plan.strategy;
}

// The names of PipeDream's papers. Their pipedream_flush is 1f1b.
template <StageWeights weights>
void pipedream(Plan& plan, const TrainOptions& options, const Cluster& cluster) {
  auto chosen = weights;
  if (weights == StageWeights::stashed) {
    if (!options.pipeline.stash_weights) chosen = StageWeights::unstashed;
    if (options.pipeline.vertical_sync) chosen = StageWeights::vertical_sync;
  }
  plan.schedule = layout::asynchronous_schedule_name(chosen);
  plan.without_flushes = {.in_flight = options.pipeline.in_flight,
                          .warm_up = options.pipeline.warm_up,
                          .steps_by_replicas = options.pipeline.steps_by_replicas};
  cut_model(plan, options, pipeline_mesh(options, cluster.ranks()));
}

void cut_model_and_layers(Plan& plan, const TrainOptions& options, const Cluster& cluster) {
  cut_model(plan, options, three_axes_mesh(options, cluster.ranks()));
  plan.schedule = options.pipeline.schedule;
}

template <layout::Mesh (*mesh_of)(const TrainOptions& options, int ranks)>
void cut_one_stage(Plan& plan, const TrainOptions& options, const Cluster& cluster) {
  auto mesh = mesh_of(options, cluster.ranks());
  if (options.zero.stage == 0) return set_mesh(plan, options, std::move(mesh));
  // ZeRO beside a tensor or context axis is that of a pipeline, here of a single stage.
  const int64_t micro_batches = plan.micro_batches;
  cut_model(plan, options, std::move(mesh));
  if (options.pipeline.micro_batches == 0) plan.micro_batches = micro_batches;
  plan.schedule = options.pipeline.schedule;
}

void downpour(Plan& plan, const TrainOptions& options, const Cluster& cluster) {
  choose_downpour(plan, options, cluster);
  const auto mesh = replicas_mesh(options, cluster.ranks());
  if (mesh.ranks() == mesh.size(Axis::data)) return;
  cut_model(plan, options, mesh);
  plan.schedule = options.pipeline.schedule;
}

struct Strategy {
  const char* name;
  const char* ours;  // Plan::strategy
  void (*choose)(Plan& plan, const TrainOptions& options, const Cluster& cluster);
};

// Lightning's deepspeed is ZeRO stage 2 by default. Its sharded (fairscale's) shards states and
// gradients. Its ddp_spawn, ddp_fork, ddp_notebook and ddp_cpu differ in how they start processes.
constexpr const char* kUnused = "ddp_find_unused_parameters_true";
constexpr std::array kStrategies{
    Strategy{"ddp", "ddp", all_reduce},
    Strategy{kUnused, kUnused, find_unused},
    Strategy{"horovod", "horovod", horovod},
    Strategy{"zero1", "zero1", zero<1>},
    Strategy{"zero2", "zero2", zero<2>},
    Strategy{"zero3", "zero3", zero<3>},
    Strategy{"local_sgd", "local_sgd", local_sgd},
    Strategy{"post_local_sgd", "post_local_sgd", post_local_sgd},
    Strategy{"diloco", "diloco", choose_diloco},
    Strategy{"parameter_server", "parameter_server", choose_servers},
    Strategy{"downpour", "downpour", downpour},
    Strategy{"sandblaster", "sandblaster", choose_sandblaster},
    Strategy{kSummationStrategy, kSummationStrategy, choose_byteps},
    Strategy{"ft_ddp", "ft_ddp", fault_tolerant},
    Strategy{kSwarmStrategy, kSwarmStrategy, choose_swarm},
    Strategy{"dp", "dp", threads},
    Strategy{kPipeline, kPipeline, pipeline},
    Strategy{"naive", "naive", pipeline},
    Strategy{"gpipe", "gpipe", pipeline},
    Strategy{"1f1b", "1f1b", pipeline},
    Strategy{"interleaved", "interleaved", pipeline},
    Strategy{"bfs", "bfs", pipeline},
    Strategy{"zb-h1", "zb-h1", pipeline},
    Strategy{"zb-h2", "zb-h2", pipeline},
    Strategy{"zb-v", "zb-v", pipeline},
    Strategy{"v-half", "v-half", pipeline},
    Strategy{"v-min", "v-min", pipeline},
    Strategy{"dualpipe-v", "dualpipe-v", pipeline},
    Strategy{"pipedream", "pipedream", pipedream<StageWeights::stashed>},
    Strategy{"pipedream_2bw", "pipedream_2bw", pipedream<StageWeights::double_buffered>},
    Strategy{"tp", "tp", cut_one_stage<tensor_mesh>},
    Strategy{"cp", "cp", cut_one_stage<context_mesh>},
    Strategy{"3d", "3d", cut_model_and_layers},
    Strategy{"pipedream_flush", "1f1b", pipeline},
    Strategy{"auto", "ddp", all_reduce},
    Strategy{"ddp2", "dp", ddp2},
    Strategy{"ddp_cpu", "ddp", all_reduce},
    Strategy{"ddp_find_unused_parameters_false", "ddp", all_reduce},
    Strategy{"ddp_fork", "ddp", all_reduce},
    Strategy{"ddp_fork_find_unused_parameters_true", kUnused, find_unused},
    Strategy{"ddp_fully_sharded", "zero3", zero<3>},
    Strategy{"ddp_notebook", "ddp", all_reduce},
    Strategy{"ddp_notebook_find_unused_parameters_true", kUnused, find_unused},
    Strategy{"ddp_sharded", "zero2", zero<2>},
    Strategy{"ddp_sharded_spawn", "zero2", zero<2>},
    Strategy{"ddp_spawn", "ddp", all_reduce},
    Strategy{"ddp_spawn_find_unused_parameters_true", kUnused, find_unused},
    Strategy{"deepspeed", "zero2", zero<2>},
    Strategy{"deepspeed_stage_1", "zero1", zero<1>},
    Strategy{"deepspeed_stage_2", "zero2", zero<2>},
    Strategy{"deepspeed_stage_3", "zero3", zero<3>},
    Strategy{"fsdp", "zero3", zero<3>},
    Strategy{"fsdp_native", "zero3", zero<3>},
    Strategy{"hybrid_shard", "zero3", hybrid_shard},
    Strategy{"sharded", "zero2", zero<2>}};

const Strategy& strategy_named(const std::string& name) {
  const auto found =
      std::ranges::find_if(kStrategies, [&](const Strategy& row) { return name == row.name; });
  if (found != kStrategies.end()) return *found;
  throw Error("train", ErrorKind::usage,
              {.what = "unknown strategy",
               .got = name,
               .hint = "did you mean " + nearest(name, strategy_names()) + "?"});
}

}  // namespace

const std::vector<std::string>& strategy_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const auto& row : kStrategies) all.emplace_back(row.name);
    return all;
  }();
  return names;
}

const std::vector<std::string>& strategies_by_memory() {
  static const std::vector<std::string> names{"ddp", "zero1", "zero2", "zero3"};
  return names;
}

Plan resolve_plan(const TrainOptions& options, const Cluster& cluster) {
  if (!options.trainer.plan.empty()) {
    return Plan::parse(options.trainer.plan, kPlanKey, cluster.ranks());
  }
  const auto& strategy = strategy_named(options.trainer.strategy);
  const auto& codec = options.ddp.codec;
  Plan plan{.strategy = strategy.ours,
            .mesh = layout::Mesh(Axis::data, std::max(1, cluster.ranks())),
            .stages = layout::ModelStages(),
            .micro_batches = options.trainer.accumulate_grad_batches,
            .exchange = {.bucket_bytes = mebibytes(options.comm.bucket_megabytes),
                         .first_bucket_bytes = mebibytes(options.comm.first_bucket_megabytes),
                         .find_unused_parameters = options.ddp.find_unused_parameters,
                         .static_graph = options.ddp.static_graph,
                         .broadcast_buffers = options.ddp.broadcast_buffers},
            .compression = {.codec = codec.name,
                            .error_feedback = codec.error_feedback,
                            .powersgd_rank = codec.rank,
                            .powersgd_start_step = codec.start_step,
                            .powersgd_warm_start = codec.warm_start,
                            .topk_density = codec.density,
                            .int8_block = codec.block},
            .precision = options.trainer.precision,
            .recompute = options.trainer.recompute,
            .offload = {.activations = options.offload.activations,
                        .optimizer = options.optimizer.offload}};
  strategy.choose(plan, options, cluster);
  refuse_ignored_mesh_options(plan, options, strategy.name);
  return plan;
}

layout::PlanPlaces places_of_plan(const TrainOptions& options) {
  const auto& text = options.trainer.plan;
  return text.empty() ? layout::PlanPlaces() : layout::PlanPlaces(text, kPlanKey);
}

Cluster cluster_of(const comm::Group& group) {
  Cluster cluster;
  for (const int node : group.nodes()) {
    while (cluster.hosts.size() <= static_cast<size_t>(node)) {
      cluster.hosts.push_back(fmt::format("host-{}", cluster.hosts.size()));
    }
    auto& devices = cluster.devices;
    if (devices.empty() || devices.back().host != node)
      devices.push_back({.host = node, .count = 0});
    ++devices.back().count;
  }
  return cluster;
}

bool trains_in_threads(const TrainOptions& options) {
  return resolve_plan(options, Cluster()).threads > 0;
}

TrainOptions with_strategy(TrainOptions options, const std::string& strategy) {
  options.trainer.plan.clear();
  options.trainer.strategy = strategy;
  options.mesh = {};
  options.zero = {};
  options.pipeline = {};
  return options;
}

TrainOptions with_plan(TrainOptions options) {
  if (options.trainer.plan.empty()) return options;
  const auto plan = Plan::parse(options.trainer.plan, kPlanKey);
  auto table = make_table(options);
  table.set("trainer.precision", plan.precision);
  table.set("trainer.recompute", plan.recompute);
  table.set("trainer.accumulate_grad_batches", std::to_string(plan.micro_batches));
  table.set("offload.activations", plan.offload.activations);
  table.set("offload.optimizer", plan.offload.optimizer);
  return options;
}

bool is_planned(const std::string& key) {
  constexpr std::array kPlanned{"trainer.strategy",       "trainer.accumulate_grad_batches",
                                "trainer.precision",      "trainer.recompute",
                                "comm.bucket_megabytes",  "comm.first_bucket_megabytes",
                                "swarm.use_local_updates"};
  constexpr std::array kSections{"ddp.",    "horovod.", "zero.",     "local_sgd.",
                                 "diloco.", "server.",  "downpour.", "sandblaster.",
                                 "byteps.", "mesh.",    "pipeline.", "offload."};
  return std::ranges::count(kPlanned, key) > 0 ||
         std::ranges::any_of(kSections, [&](const char* one) { return key.starts_with(one); });
}

}  // namespace troika::train
