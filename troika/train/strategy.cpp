#include "troika/train/strategy.h"

#include <algorithm>
#include <map>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/nn/precision.h"
#include "troika/parallel/data_parallel.h"
#include "troika/parallel/local_steps.h"
#include "troika/parallel/sharded.h"
#include "troika/train/replicated_task.h"

namespace troika::train {

namespace {

parallel::DataParallelOptions data_parallel_options(const TrainOptions& options) {
  parallel::DataParallelOptions result = options.ddp;
  result.bucket_bytes = mebibytes(options.comm.bucket_megabytes);
  result.first_bucket_bytes = mebibytes(options.comm.first_bucket_megabytes);
  return result;
}

// FSDP's name for stage 3 within nodes.
constexpr const char* kHybrid = "hybrid_shard";
// Lightning's name (before 1.9) for dp in each node and ddp between them.
constexpr const char* kDdp2 = "ddp2";

// Lightning's deepspeed is stage 2 by default, its sharded (fairscale's) shares out states and
// gradients, and its ddp_spawn, ddp_fork, ddp_notebook and ddp_cpu start processes in other ways,
// which is the launcher's business here.
const std::map<std::string, std::string>& aliases() {
  static const std::map<std::string, std::string> names{
      {"auto", "ddp"},
      {kDdp2, "dp"},
      {"ddp_sharded", "zero2"},
      {"ddp_sharded_spawn", "zero2"},
      {"ddp_fully_sharded", "zero3"},
      {"deepspeed", "zero2"},
      {"deepspeed_stage_1", "zero1"},
      {"deepspeed_stage_2", "zero2"},
      {"deepspeed_stage_3", "zero3"},
      {"fsdp", "zero3"},
      {"fsdp_native", "zero3"},
      {kHybrid, "zero3"},
      {"sharded", "zero2"},
      {"ddp_cpu", "ddp"},
      {"ddp_find_unused_parameters_false", "ddp"},
      {"ddp_fork", "ddp"},
      {"ddp_fork_find_unused_parameters_true", "ddp_find_unused_parameters_true"},
      {"ddp_notebook", "ddp"},
      {"ddp_notebook_find_unused_parameters_true", "ddp_find_unused_parameters_true"},
      {"ddp_spawn", "ddp"},
      {"ddp_spawn_find_unused_parameters_true", "ddp_find_unused_parameters_true"}};
  return names;
}

// The ranks of a node, if all nodes have as many, and they are consecutive.
int ranks_of_node(const comm::Group& group) {
  const auto& nodes = group.nodes();
  const auto first = std::count(nodes.begin(), nodes.end(), nodes.front());
  for (size_t r = 0; r < nodes.size(); ++r) {
    const size_t begin = r / static_cast<size_t>(first) * static_cast<size_t>(first);
    if (std::count(nodes.begin(), nodes.end(), nodes[r]) == first && nodes[r] == nodes[begin]) {
      continue;
    }
    throw Error("train", ErrorKind::usage,
                {.what = "strategy hybrid_shard shares out within nodes",
                 .got = "nodes of different numbers of ranks, or ranks in turns",
                 .expected = "consecutive ranks, equally many on each node",
                 .hint = "set zero.group_size"});
  }
  return static_cast<int>(first);
}

void require_one_rank_a_node(const comm::Group& group) {
  const auto& nodes = group.nodes();
  for (const int node : nodes) {
    const auto count = std::count(nodes.begin(), nodes.end(), node);
    if (count == 1) continue;
    throw Error("train", ErrorKind::usage,
                {.what = "strategy ddp2 has one process on each machine",
                 .got = std::to_string(count) + " on machine " + std::to_string(node),
                 .expected = "one of trainer.devices threads",
                 .hint = "ddp takes several processes a machine"});
  }
}

int sharing_ranks(const TrainOptions& options, const comm::Group& group) {
  const bool by_node = options.trainer.strategy == kHybrid && options.zero.group_size == 0;
  return by_node ? ranks_of_node(group) : static_cast<int>(options.zero.group_size);
}

}  // namespace

const std::vector<std::string>& strategy_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all{"ddp",       "ddp_find_unused_parameters_true",
                                 "horovod",   "zero1",
                                 "zero2",     "zero3",
                                 "local_sgd", "post_local_sgd",
                                 "diloco",    "dp"};
    for (const auto& [alias, name] : aliases()) all.push_back(alias);
    return all;
  }();
  return names;
}

std::string canonical_strategy(const std::string& name) {
  const auto alias = aliases().find(name);
  return alias == aliases().end() ? name : alias->second;
}

int64_t mebibytes(double count) {
  return static_cast<int64_t>(count * (1 << 20));
}

bool in_one_process(const TrainOptions& options) {
  return canonical_strategy(options.trainer.strategy) == "dp";
}

std::unique_ptr<Task> make_task(const TrainOptions& options) {
  const auto make = [&] { return std::make_unique<Task>(nn::make_model(options.model)); };
  if (!in_one_process(options)) return make();
  std::vector<std::shared_ptr<Task>> tasks;
  for (int64_t i = 0; i < std::max<int64_t>(1, options.trainer.devices); ++i) {
    tasks.push_back(make());
  }
  return std::make_unique<ReplicatedTask>(std::move(tasks));
}

std::unique_ptr<parallel::Exchange> make_exchange(const TrainOptions& options, Task& task,
                                                  const comm::Group& group, Trace* trace) {
  const std::string name = canonical_strategy(options.trainer.strategy);
  const int64_t replicas = name == "dp" ? std::max<int64_t>(1, options.trainer.devices) : 1;
  if (task.replicas() != replicas) {
    throw Error("train", ErrorKind::usage,
                {.what = "strategy " + name + " and the task disagree",
                 .got = std::to_string(task.replicas()) + " replicas",
                 .expected = std::to_string(replicas),
                 .hint = "dp trains a ReplicatedTask of trainer.devices replicas"});
  }
  if (options.trainer.strategy == kDdp2) require_one_rank_a_node(group);
  auto ddp = data_parallel_options(options);
  ddp.trace = trace;
  if (name == "ddp_find_unused_parameters_true") ddp.find_unused_parameters = true;
  const auto precision = nn::parse_precision(options.trainer.precision);
  if (name == "dp" && precision.needs_scaler()) {
    // Scaling the loss later would not bring back gradients that underflowed.
    throw Error("train", ErrorKind::usage,
                {.what = "strategy dp makes gradients before the loss is scaled",
                 .got = "precision " + precision.name,
                 .expected = "32, 64, bf16-mixed or bf16-true",
                 .hint = "ddp takes it"});
  }
  if (name == "ddp" || name == "ddp_find_unused_parameters_true" || name == "horovod" ||
      name == "dp") {
    return std::make_unique<parallel::DataParallel>(task.module(), group, ddp);
  }
  if (name.starts_with("zero")) {
    return std::make_unique<parallel::Sharded>(
        task.module(), group,
        parallel::ShardedOptions{.stage = name.back() - '0',
                                 .group_size = sharing_ranks(options, group),
                                 .piece_multiple = optim::piece_multiple(options.optimizer.name),
                                 .data_parallel = ddp});
  }
  if (precision.needs_masters() || precision.needs_scaler()) {
    throw Error("train", ErrorKind::usage,
                {.what = "strategy " + name + " averages weights between steps of single ranks",
                 .got = "precision " + precision.name,
                 .expected = "32, 64 or bf16-mixed"});
  }
  parallel::LocalStepsOptions local{.synchronous = ddp};
  if (name == "local_sgd" || name == "post_local_sgd") {
    local.period = options.local_sgd.period;
    if (name == "post_local_sgd") local.warmup_steps = options.local_sgd.warmup_steps;
  } else if (name == "diloco") {
    local.period = options.diloco.period;
    local.warmup_steps = options.diloco.warmup_steps;
    local.outer = parallel::diloco_outer(options.diloco.outer_lr, options.diloco.outer_momentum);
  } else {
    throw Error("train", ErrorKind::usage,
                {.what = "unknown strategy",
                 .got = name,
                 .hint = "did you mean " + nearest(name, strategy_names()) + "?"});
  }
  return std::make_unique<parallel::LocalSteps>(task.module(), group, local);
}

Accumulation accumulation(const TrainOptions& options) {
  const int64_t batches = options.trainer.accumulate_grad_batches;
  const int64_t passes = options.horovod.backward_passes_per_step;
  const bool is_horovod = options.trainer.strategy == "horovod";
  if (!is_horovod || passes == 1) return {batches, 1.0 / static_cast<double>(batches)};
  if (batches > 1) {
    throw Error("train", ErrorKind::usage,
                {.what = "trainer.accumulate_grad_batches and horovod.backward_passes_per_step "
                         "both accumulate",
                 .got = std::to_string(batches) + " and " + std::to_string(passes),
                 .expected = "one of them above 1"});
  }
  const bool mean = options.horovod.average_aggregated_gradients;
  return {passes, mean ? 1.0 / static_cast<double>(passes) : 1.0};
}

}  // namespace troika::train
