#include "troika/layout/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "troika/base/config.h"
#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/layout/context_method.h"
#include "troika/layout/errors/refuse.h"
#include "troika/layout/plan_axes.h"
#include "troika/layout/plan_places.h"
#include "troika/layout/plan_without_flushes.h"
#include "troika/layout/schedules/complete.h"
#include "troika/layout/schedules/inventory.h"
#include "troika/layout/schedules/pairs.h"

namespace troika::layout {

namespace {

constexpr std::array<std::pair<const char*, ExchangeMethod>, 9> kMethods{
    {{"all_reduce", ExchangeMethod::all_reduce},
     {"summation", ExchangeMethod::summation},
     {"zero", ExchangeMethod::zero},
     {"local_steps", ExchangeMethod::local_steps},
     {"servers", ExchangeMethod::servers},
     {"downpour_sgd", ExchangeMethod::downpour},
     {"sandblaster_lbfgs", ExchangeMethod::sandblaster},
     {"quorum", ExchangeMethod::fault_tolerant},
     {"collaborative", ExchangeMethod::collaborative}}};

std::vector<std::string> method_names() {
  std::vector<std::string> names;
  for (const auto& [name, method] : kMethods) names.emplace_back(name);
  return names;
}

const char* method_name(ExchangeMethod wanted) {
  for (const auto& [name, method] : kMethods) {
    if (method == wanted) return name;
  }
  TROIKA_CHECK(false, "a method without a name");
}

ExchangeMethod method_from(std::string_view text) {
  for (const auto& [name, method] : kMethods) {
    if (text == name) return method;
  }
  TROIKA_CHECK(false, "a method that the table let through");
}

// A plan as in its text form, with strings for members that a table cannot bind.
struct Written {
  Plan plan;
  std::string mesh;
  std::string method;
};

void add_exchange(config::Table& table, Written& written) {
  auto& exchange = written.plan.exchange;
  table.add(
      "exchange.method", &written.method,
      "how replicas are kept identical; all_reduce: each step averages gradients; "
      "summation: the same, by summation servers; zero: the same, and memory is sharded; "
      "local_steps: parameters are averaged every few steps; "
      "servers: parameter servers step the parameters; downpour_sgd: the same, by replicas that "
      "do not wait for each other; sandblaster_lbfgs: L-BFGS with vectors on servers; quorum: as "
      "all_reduce, by replicas that may be lost; collaborative: the same, by peers that come "
      "and go",
      config::one_of(method_names()));
  table.add("exchange.bucket_bytes", &exchange.bucket_bytes,
            "size of a bucket of gradients, in bytes", config::at_least(int64_t{0}));
  table.add("exchange.first_bucket_bytes", &exchange.first_bucket_bytes,
            "size of the bucket that is averaged first, in bytes", config::at_least(int64_t{0}));
  table.add("exchange.find_unused_parameters", &exchange.find_unused_parameters,
            "allow parameters that get no gradient in some steps");
  table.add("exchange.static_graph", &exchange.static_graph,
            "the parameters that get gradients are the same in every step as in the first one");
  table.add("exchange.broadcast_buffers", &exchange.broadcast_buffers,
            "all ranks get one rank's buffers after each step");
  table.add("exchange.zero_stage", &exchange.zero_stage,
            "zero: 1 shards optimizer states; 2 also gradients; 3 also parameters",
            config::between(int64_t{0}, int64_t{3}));
  table.add("exchange.zero_group", &exchange.zero_group,
            "zero: number of consecutive ranks over which the model is sharded; 0: all",
            config::count_from(0));
  table.add("exchange.period", &exchange.period, "local_steps: number of steps between averages",
            config::count_from(1));
  table.add("exchange.warmup_steps", &exchange.warmup_steps,
            "local_steps: number of steps at the start that average gradients",
            config::count_from(0));
  add_keys(table, exchange.outer);
}

void add_servers(config::Table& table, ServerExchange& servers) {
  table.add("servers.consistency", &servers.consistency,
            "servers: which steps of other ranks a step waits for",
            config::one_of({"sequential", "bounded", "eventual"}));
  table.add("servers.delay", &servers.delay, "bounded: number of steps by which ranks may be apart",
            config::count_from(0));
  table.add("servers.count", &servers.count, "number of servers; 0: one in each process",
            config::between(int64_t{0}, int64_t{4096}));
  table.add("servers.replicas", &servers.replicas,
            "number of copies of each range of parameters on other servers", config::count_from(0));
  table.add("servers.push_filters", &servers.push_filters,
            "filters of gradients on their way to the servers; docs/parameter-server.md");
  table.add("servers.pull_filters", &servers.pull_filters,
            "filters of parameters on their way to the ranks");
  table.add("servers.limit_seconds", &servers.limit_seconds,
            "a process that is silent for this time is lost", config::above(0.0));
}

void add_downpour(config::Table& table, DownpourExchange& downpour) {
  table.add("downpour.n_fetch", &downpour.n_fetch,
            "number of steps from one fetch of the parameters to the next one",
            config::count_from(1));
  table.add("downpour.n_push", &downpour.n_push,
            "number of steps whose gradients are added up for one push", config::count_from(1));
  table.add("downpour.local_rate", &downpour.local_rate,
            "rate of a replica's own steps between fetches, as a multiple of the learning rate",
            config::at_least(0.0));
  table.add("downpour.overlap", &downpour.overlap,
            "a replica computes while its parameters are fetched");
  table.add("downpour.warm_start_steps", &downpour.warm_start_steps,
            "number of steps that replica 0 makes before the others begin", config::count_from(0));
}

void add_summation(config::Table& table, SummationExchange& summation) {
  table.add("summation.partition_bytes", &summation.partition_bytes,
            "largest piece that one server sums, in bytes", config::at_least(int64_t{64}));
  table.add("summation.credit_bytes", &summation.credit_bytes,
            "bytes that a rank may have pushed before servers have confirmed them; 0: no limit",
            config::at_least(int64_t{0}));
  table.add("summation.priorities", &summation.priorities,
            "gradients of the first layers go first");
  table.add("summation.links", &summation.links,
            "bandwidths of the links of spare machines, then of workers; measured: at the start; "
            "empty: equal");
  table.add("summation.cross_barrier", &summation.cross_barrier,
            "parameters are stepped when their mean gradient is there, not when all means are");
  table.add("summation.asynchronous", &summation.asynchronous,
            "servers keep the parameters, and add each rank's change at once");
  table.add("summation.local_sums", &summation.local_sums, "form of sums inside machines",
            config::one_of({"none", "plain", "fp16", "bf16"}));
  table.add("summation.momentum", &summation.momentum, "momentum of gradients before codecs",
            config::from_to_below(0.0, 1.0));
  table.add("summation.dither_norm", &summation.dither_norm, "of blocks; dither and natural",
            config::one_of({"max", "l2"}));
}

void add_compression(config::Table& table, Compression& compression) {
  table.add("compression.codec", &compression.codec, "compression of gradients in their all-reduce",
            config::one_of({"none", "fp16", "bf16", "powersgd", "topk", "int8", "onebit", "randomk",
                            "dither", "natural"}));
  table.add("compression.error_feedback", &compression.error_feedback,
            "all but fp16 and bf16: add the compression error to the next gradient");
  table.add("compression.powersgd_rank", &compression.powersgd_rank,
            "powersgd: rank of the approximation", config::count_from(1));
  table.add("compression.powersgd_start_step", &compression.powersgd_start_step,
            "powersgd: number of steps without compression at the start", config::count_from(0));
  table.add("compression.powersgd_warm_start", &compression.powersgd_warm_start,
            "powersgd: start from the factors of the step before");
  table.add("compression.topk_density", &compression.topk_density,
            "topk and randomk: fraction of the elements that is sent", config::above_to(0.0, 1.0));
  table.add("compression.int8_block", &compression.int8_block,
            "int8, dither and natural: number of elements that share a scale",
            config::count_from(1));
}

std::vector<std::string> plan_schedule_names() {
  std::vector<std::string> names{kOneStageSchedule};
  for (auto& name : schedule_names()) names.push_back(std::move(name));
  for (auto& name : asynchronous_schedule_names()) names.push_back(std::move(name));
  names.emplace_back(kAutomaticSchedule);
  names.emplace_back(kCustomSchedule);
  return names;
}

config::Table make_table(Written& written) {
  auto& plan = written.plan;
  config::Table table;
  table.add("plan.strategy", &plan.strategy,
            "strategy from which the plan was made; used only in messages");
  table.add("mesh.axes", &written.mesh,
            "sizes of the axes, outermost first, for example pipeline=2 data=4; -1: the rest of "
            "the ranks");
  table.add(
      "mesh.threads", &plan.threads,
      "threads of each process, each of which trains a replica; 0: the process itself trains one",
      config::count_from(0));
  table.add("mesh.sequence_parallel", &plan.stages.sequence_parallel,
            "each rank of a tensor axis has its part of the tokens between cut layers");
  table.add("mesh.tensor_overlap", &plan.stages.tensor_overlap,
            "two micro-batches run forward at the same time: one computes while the other's "
            "collectives over the tensor axis run");
  table.add("mesh.context_method", &plan.stages.context_method,
            "how the ranks of a context axis compute attention",
            config::one_of(context_method_names()));
  table.add("stages.cut", &plan.stages.cut,
            "the blocks of each stage, by which a plan for another model is refused; empty: one "
            "stage, or stages of about equal size");
  table.add("stages.parameters", &plan.stages.parameters,
            "number of parameters of the model for which the plan was searched; a model with "
            "another number is refused; 0: any model",
            config::count_from(0));
  table.add("schedule.name", &plan.schedule, "order of forward and backward passes",
            config::one_of(plan_schedule_names()));
  table.add("schedule.chunks", &plan.chunks,
            "number of stages on each rank; 0: the default of the schedule", config::count_from(0));
  table.add("schedule.actions", &plan.actions,
            "custom: one line for each rank, with all its actions or only its passes");
  table.add("schedule.micro_batches", &plan.micro_batches,
            "micro-batches of each replica in an optimizer step",
            config::between(int64_t{1}, kMostPipelinePasses));
  table.add("schedule.in_flight", &plan.without_flushes.in_flight,
            "without flushes: micro-batches in flight on a stage for each stage that follows",
            config::count_from(1));
  table.add("schedule.warm_up", &plan.without_flushes.warm_up,
            "without flushes, for different numbers of replicas: the rule for the forward passes "
            "before a stage's first backward pass",
            config::one_of(warm_up_names()));
  table.add("schedule.steps_by_replicas", &plan.without_flushes.steps_by_replicas,
            "pipedream with different numbers of replicas: a stage steps after a micro-batch of "
            "each of its replicas, with a learning rate in proportion to their number");
  table.add("schedule.sums_micro_batches", &plan.sums_micro_batches,
            "sum the gradients of micro-batches instead of averaging them");
  add_exchange(table, written);
  add_servers(table, plan.exchange.servers);
  add_downpour(table, plan.exchange.downpour);
  add_keys(table, plan.exchange.sandblaster);
  add_summation(table, plan.exchange.summation);
  add_compression(table, plan.compression);
  table.add("memory.precision", &plan.precision, "number type; see trainer.precision");
  table.add(
      "memory.recompute", &plan.recompute,
      "blocks whose activations are computed again in the backward pass; see trainer.recompute");
  table.add("memory.offload_activations", &plan.offload.activations,
            "folder for activations, or host; empty: no offload");
  table.add("memory.offload_optimizer", &plan.offload.optimizer,
            "folder for the states of the optimizer; empty: no offload");
  return table;
}

// Throws Error(usage) if the schedule does not support the shape.
PipelineShape shape_of(const Plan& plan) {
  const auto& row = row_of(plan);
  const auto shape = require_domain(row, {.ranks = plan.mesh.size(Axis::pipeline),
                                          .micro_batches = static_cast<int>(plan.micro_batches),
                                          .chunks = static_cast<int>(plan.chunks)});
  if (plan.stages.tensor_overlap) require_pairs(row, shape);
  return shape;
}

Schedule custom_schedule(const Plan& plan) {
  auto schedule = read_schedule(plan.actions, "schedule.actions");
  const int ranks = plan.mesh.size(Axis::pipeline);
  const Inventory inventory(schedule);
  if (static_cast<int>(schedule.ranks.size()) != ranks ||
      inventory.micro_batches != plan.micro_batches) {
    refuse("schedule.actions",
           fmt::format("{} ranks and {} micro-batches", schedule.ranks.size(),
                       inventory.micro_batches),
           fmt::format("the plan's: {} and {}", ranks, plan.micro_batches));
  }
  return schedule;
}

}  // namespace

Plan Plan::parse(std::string_view toml, std::string_view name, int world) {
  Written written;
  written.method = method_name(written.plan.exchange.method);
  make_table(written).parse(toml, name);
  written.plan.mesh = Mesh::parse(written.mesh, world, PlanPlaces(toml, name).of("mesh.axes"));
  written.plan.exchange.method = method_from(written.method);
  return written.plan;
}

std::string Plan::text() const {
  Written written;
  written.plan = *this;
  written.mesh = mesh.text();
  written.method = method_name(exchange.method);
  return make_table(written).to_toml();
}

void Plan::verify() const {
  const bool is_zero = exchange.method == ExchangeMethod::zero;
  const auto method = std::string("exchange.method ") + method_name(exchange.method);
  if (is_zero != (exchange.zero_stage > 0)) {
    refuse("exchange.zero_stage of " + method, std::to_string(exchange.zero_stage),
           is_zero ? "1, 2 or 3" : "0");
  }
  if (!is_zero && exchange.zero_group > 0)
    refuse("exchange.zero_group of " + method, std::to_string(exchange.zero_group), "0");
  if (is_zero && exchange.zero_group > 0 && mesh.has_uneven_stages()) {
    refuse("exchange.zero_group of stages with different numbers of replicas",
           fmt::format("{} ranks of mesh {}", exchange.zero_group, mesh.text()),
           "0: all replicas of a stage");
  }
  const int64_t copies =
      mesh.has_uneven_stages() ? 0 : mesh.size(Axis::data) * mesh.size(Axis::context);
  if (is_zero && copies % sharing_ranks() != 0) {
    refuse("groups of ranks that shard a model",
           fmt::format("{} ranks in each", exchange.zero_group),
           fmt::format("a divisor of {}, the ranks of the data axis{}", copies,
                       mesh.size(Axis::context) > 1 ? " and the context axis" : ""));
  }
  if ((schedule == kCustomSchedule) == actions.empty()) {
    refuse("schedule.actions of schedule.name " + schedule, actions.empty() ? "none" : "some",
           actions.empty() ? "a line of actions for each rank" : "none");
  }
  if (chunks > 0 && (schedule == kOneStageSchedule || schedule == kCustomSchedule)) {
    refuse("schedule.chunks of schedule.name " + schedule, std::to_string(chunks), "0");
  }
  if (schedule == kCustomSchedule) custom_schedule(*this);
  const bool is_named = schedule != kCustomSchedule && schedule != kOneStageSchedule;
  if (is_named && schedule != kAutomaticSchedule) shape_of(*this);
  if (is_asynchronous() && exchange.method != ExchangeMethod::all_reduce) {
    refuse("schedule.name " + schedule, method, "all_reduce");
  }
  verify_without_flushes(*this);
  const auto& servers = exchange.servers;
  if (servers.delay > 0 && servers.consistency != "bounded") {
    refuse("servers.delay of servers.consistency " + servers.consistency,
           std::to_string(servers.delay), "0, or servers.consistency bounded");
  }
  verify_axes(*this);
  const bool is_downpour = exchange.method == ExchangeMethod::downpour;
  if (is_downpour && servers.consistency != "eventual") {
    refuse("servers.consistency of exchange.method downpour_sgd", servers.consistency,
           "eventual: replicas do not wait for each other");
  }
  if (!is_downpour && exchange.downpour != DownpourExchange()) {
    refuse("values of downpour", method, "exchange.method downpour_sgd");
  }
  const bool is_sandblaster = exchange.method == ExchangeMethod::sandblaster;
  if (!is_sandblaster && exchange.sandblaster != SandblasterExchange()) {
    refuse("values of sandblaster", method, "exchange.method sandblaster_lbfgs");
  }
  exchange.sandblaster.verify();
  if (is_sandblaster && (servers.consistency != "sequential" || !servers.push_filters.empty() ||
                         !servers.pull_filters.empty())) {
    refuse("servers of exchange.method sandblaster_lbfgs",
           fmt::format("consistency {} and filters \"{}{}\"", servers.consistency,
                       servers.push_filters, servers.pull_filters),
           "consistency sequential and no filters: L-BFGS needs exact numbers");
  }
  const bool is_summation = exchange.method == ExchangeMethod::summation;
  if (is_summation && (mesh.ranks() != mesh.size(Axis::data) || schedule != kOneStageSchedule)) {
    refuse("exchange.method summation", fmt::format("mesh.axes {} and {}", mesh.text(), schedule),
           "a data axis only, and schedule.name one_stage");
  }
  if (!is_summation && exchange.summation != SummationExchange())
    refuse("values of summation", method, "exchange.method summation");
  const int worlds =
      exchange.method == ExchangeMethod::downpour ? mesh.size(Axis::data) : mesh.ranks();
  const int64_t count = servers.count > 0 ? servers.count : worlds;
  if (has_servers() && servers.replicas >= count) {
    refuse("servers.replicas", std::to_string(servers.replicas),
           fmt::format("fewer than the {} server{}", count, count == 1 ? "" : "s"));
  }
  exchange.outer.verify(exchange.method == ExchangeMethod::collaborative ? 0 : exchange.period);
  if (threads > 0 && exchange.method != ExchangeMethod::all_reduce) {
    refuse("mesh.threads", fmt::format("{} with {}", threads, method_name(exchange.method)),
           "0, or exchange.method all_reduce");
  }
}

const ScheduleRow& row_of(const Plan& plan) {
  return schedule_row(plan.is_asynchronous() ? kAsynchronousOrder : plan.schedule);
}

Schedule schedule_of(const Plan& plan) {
  const bool gathers =
      plan.exchange.method == ExchangeMethod::zero && plan.exchange.zero_stage == 3;
  if (plan.schedule == kOneStageSchedule) {
    if (plan.micro_batches > kMostPipelinePasses) {
      refuse("micro-batches of one_stage", std::to_string(plan.micro_batches),
             fmt::format("at most {}", kMostPipelinePasses));
    }
    return one_stage(static_cast<int>(plan.micro_batches), plan.stages.tensor_overlap ? 2 : 1);
  }
  if (plan.schedule == kCustomSchedule) return custom_schedule(plan);
  if (plan.schedule == kAutomaticSchedule) {
    refuse("schedule auto without measured times", "a plan", "a run, which measures them");
  }
  const auto shape = shape_of(plan);
  const auto& row = row_of(plan);
  return complete(plan.stages.tensor_overlap ? order_in_pairs(row, shape) : row.order(shape), {},
                  gathers);
}

}  // namespace troika::layout
