#include "troika/train/engine/make_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "troika/base/error.h"
#include "troika/compat/deferred_init.h"
#include "troika/nn/precision.h"
#include "troika/parallel/data_parallel.h"
#include "troika/parallel/diloco/diloco.h"
#include "troika/parallel/diloco/group_mean.h"
#include "troika/parallel/diloco/quorum_mean.h"
#include "troika/parallel/fault_tolerant.h"
#include "troika/parallel/local_steps.h"
#include "troika/parallel/replicas.h"
#include "troika/parallel/servers/asynchronous_sums.h"
#include "troika/parallel/servers/local_sums.h"
#include "troika/parallel/servers/summation.h"
#include "troika/parallel/sharded.h"
#include "troika/parallel/swarm/local_updates.h"
#include "troika/parallel/swarm/swarm_exchange.h"
#include "troika/parallel/tensor/tensor_exchange.h"
#include "troika/parallel/warm_up.h"
#include "troika/train/engine/served_exchange.h"

namespace troika::train {

namespace {

using layout::ExchangeMethod;
using parallel::Exchange;

parallel::DataParallelOptions data_parallel_options(const layout::Plan& plan, Trace* trace) {
  parallel::DataParallelOptions result;
  result.bucket_bytes = plan.exchange.bucket_bytes;
  result.first_bucket_bytes = plan.exchange.first_bucket_bytes;
  result.find_unused_parameters = plan.exchange.find_unused_parameters;
  result.static_graph = plan.exchange.static_graph;
  result.broadcast_buffers = plan.exchange.broadcast_buffers;
  const auto& compression = plan.compression;
  result.codec.name = compression.codec;
  result.codec.error_feedback = compression.error_feedback;
  result.codec.rank = compression.powersgd_rank;
  result.codec.start_step = compression.powersgd_start_step;
  result.codec.warm_start = compression.powersgd_warm_start;
  result.codec.density = compression.topk_density;
  result.codec.block = compression.int8_block;
  result.trace = trace;
  return result;
}

parallel::ShardedOptions sharded_options(const layout::Plan& plan, const std::string& optimizer,
                                         const parallel::DataParallelOptions& ddp) {
  return {.stage = static_cast<int>(plan.exchange.zero_stage),
          .group_size = static_cast<int>(plan.exchange.zero_group),
          .shard_multiple = optim::shard_multiple(optimizer),
          .data_parallel = ddp};
}

// How summation servers and ranks encode what they send, for a codec of ddp.hook.
server::SummationCoding coding_of(const comm::CodecOptions& codec, const std::string& norm) {
  constexpr std::array<std::pair<std::string_view, server::SumForm>, 8> kForms{{
      {"none", server::SumForm::plain},
      {"fp16", server::SumForm::half},
      {"int8", server::SumForm::int8},
      {"topk", server::SumForm::top},
      {"onebit", server::SumForm::sign},
      {"randomk", server::SumForm::random},
      {"dither", server::SumForm::dither},
      {"natural", server::SumForm::natural},
  }};
  const auto form =
      std::ranges::find(kForms, codec.name, [](const auto& one) { return one.first; });
  if (form == kForms.end()) {
    throw Error("train", ErrorKind::usage,
                {.what = "summation servers have not all codecs",
                 .got = "ddp.hook " + codec.name,
                 .expected = "none, fp16, int8, topk, onebit, randomk, dither or natural"});
  }
  const bool leaves_much = codec.name != "none" && codec.name != "fp16";
  return {.form = form->second,
          .density = codec.density,
          .block = static_cast<uint32_t>(codec.block),
          .has_l2_norm = norm == "l2",
          .error_feedback = leaves_much && codec.error_feedback};
}

// Momentum before the servers takes the place of the optimizer's.
void require_momentum_fits(const layout::Plan& plan, const OptimizerRecipe& recipe) {
  const double momentum = plan.exchange.summation.momentum;
  if (momentum == 0) return;
  const auto& optimizer = recipe.optimizer;
  const bool has_momentum =
      optimizer.momentum > 0 && (optimizer.name == "sgd" || optimizer.name == "lars");
  if (recipe.make || !has_momentum) return;
  throw Error("train", ErrorKind::usage,
              {.what = "byteps.momentum takes the place of the optimizer's",
               .got = fmt::format("byteps.momentum {} and optim.momentum {} of {}", momentum,
                                  optimizer.momentum, optimizer.name),
               .expected = "at most one of them above 0"});
}

parallel::OuterOptions outer_options(const layout::OuterExchange& outer) {
  return {.lr = outer.lr,
          .momentum = outer.momentum,
          .fragments = outer.fragments,
          .mixing = outer.mixing};
}

std::unique_ptr<Exchange> make_diloco(const layout::GradientExchange& exchange,
                                      torch::nn::Module& module,
                                      std::unique_ptr<parallel::ReplicaMean> mean, Trace* trace) {
  const auto& outer = exchange.outer;
  return std::make_unique<parallel::DiLoCo>(
      module, std::move(mean),
      parallel::DiLoCoSchedule{.inner_steps = exchange.period, .delay = outer.delay},
      outer_options(outer), trace);
}

void require_replicas(const layout::Plan& plan, const Task& task) {
  const int64_t replicas = std::max<int64_t>(1, plan.threads);
  if (task.replicas() == replicas) return;
  throw Error("train", ErrorKind::usage,
              {.what = "strategy " + plan.strategy + " and the task disagree",
               .got = std::to_string(task.replicas()) + " replicas",
               .expected = std::to_string(replicas),
               .hint = "dp trains a ReplicatedTask of trainer.devices replicas"});
}

void require_precision(const layout::Plan& plan) {
  const auto precision = nn::parse_precision(plan.precision);
  // Scaling the loss later would not restore gradients that have underflowed.
  if (plan.threads > 0 && precision.needs_scaler()) {
    throw Error("train", ErrorKind::usage,
                {.what = "strategy dp makes gradients before the loss is scaled",
                 .got = "precision " + precision.name,
                 .expected = "32, 64, bf16-mixed or bf16-true",
                 .hint = "ddp takes it"});
  }
  if (!plan.keeps_replicas_equal() && (precision.needs_masters() || precision.needs_scaler())) {
    throw Error("train", ErrorKind::usage,
                {.what = fmt::format("strategy {} averages weights between steps of single ranks",
                                     plan.strategy),
                 .got = "precision " + precision.name,
                 .expected = "32, 64 or bf16-mixed"});
  }
}

}  // namespace

std::unique_ptr<Exchange> make_stage_exchange(const layout::Plan& plan,
                                              const std::string& optimizer, torch::nn::Module& part,
                                              const comm::Group& group, Trace* trace) {
  const auto ddp = data_parallel_options(plan, trace);
  if (plan.exchange.method == ExchangeMethod::all_reduce) {
    return std::make_unique<parallel::DataParallel>(part, group, ddp);
  }
  auto options = sharded_options(plan, optimizer, ddp);
  options.gathers_at_once = options.stage == 3;
  return std::make_unique<parallel::Sharded>(part, group, options);
}

std::unique_ptr<parallel::ContextParallel> cut_samples(const layout::Plan& plan, Task& task,
                                                       const comm::Group& axis) {
  if (axis.size() == 1) return nullptr;
  return std::make_unique<parallel::ContextParallel>(
      dynamic_cast<nn::Model&>(task.module()), axis, task.split_table(),
      parallel::ContextOptions{.method = layout::parse_context_method(plan.stages.context_method),
                               .tensor_ranks = plan.mesh.size(layout::Axis::tensor)});
}

std::unique_ptr<Exchange> make_exchange(const layout::Plan& plan, const TrainOptions& options,
                                        const OptimizerRecipe& recipe, Task& task,
                                        const comm::MeshGroups& groups, Trace* trace,
                                        compat::DeferredInit* values) {
  const auto& group = groups.replicas();
  require_replicas(plan, task);
  TROIKA_CHECK(!plan.trains_replicas(), "a method of replicas together");
  TROIKA_CHECK(plan.exchange.method != ExchangeMethod::fault_tolerant, "a method of a quorum");
  TROIKA_CHECK(plan.exchange.method != ExchangeMethod::collaborative, "a method of a swarm");
  if (plan.exchange.method == ExchangeMethod::servers) {
    return make_served_exchange(plan, options, recipe, task.module(),
                                parallel::ReplicaPlace::of_each(group));
  }
  require_precision(plan);
  auto ddp = data_parallel_options(plan, trace);
  const auto& exchange = plan.exchange;
  if (exchange.method == ExchangeMethod::summation) {
    ddp.crosses_barrier = exchange.summation.cross_barrier;
    if (ddp.crosses_barrier && recipe.make) {
      throw Error("train", ErrorKind::usage,
                  {.what = "byteps.cross_barrier steps parameters one after the other",
                   .got = "an optimizer of configure_optimizers()",
                   .expected = "one of optim.name"});
    }
    require_momentum_fits(plan, recipe);
    const parallel::SummationOptions sums{
        .servers = exchange.servers,
        .sums = exchange.summation,
        .coding = coding_of(ddp.codec, exchange.summation.dither_norm),
        .trace = trace};
    if (exchange.summation.asynchronous) {
      return std::make_unique<parallel::AsynchronousSums>(
          task.module(), group, std::make_shared<parallel::SummationServers>(group, sums));
    }
    ddp.codec = {};
    ddp.sums = parallel::make_summation(group, sums);
  }
  if (const auto& axis = groups.along(layout::Axis::tensor); axis.size() > 1) {
    if (values) parallel::make_same(groups.world(), task.module(), ddp.copy_state, *values);
    return std::make_unique<parallel::TensorExchange>(
        dynamic_cast<nn::Model&>(task.module()), axis, task.split_table(),
        parallel::TensorOptions{
            .sequence = plan.stages.sequence_parallel, .values = values, .trace = trace},
        [&] { return std::make_unique<parallel::DataParallel>(task.module(), group, ddp); });
  }
  if (plan.averages_whole_gradients()) {
    return std::make_unique<parallel::DataParallel>(task.module(), group, ddp);
  }
  if (exchange.method == ExchangeMethod::zero) {
    auto zero = sharded_options(plan, recipe.optimizer.name, ddp);
    zero.values = values;
    return std::make_unique<parallel::Sharded>(task.module(), group, zero);
  }
  auto& module = task.module();
  const auto after_warm_up = [&module, group, exchange, trace,
                              copy_state = ddp.copy_state]() -> std::unique_ptr<Exchange> {
    if (!exchange.outer.is_on) {
      return std::make_unique<parallel::LocalSteps>(
          module, group,
          parallel::LocalStepsOptions{.period = exchange.period, .copy_state = copy_state});
    }
    const auto& outer = exchange.outer;
    parallel::make_same(group, module, copy_state);
    return make_diloco(exchange, module,
                       std::make_unique<parallel::GroupMean>(group, outer.codec, outer.delay > 0),
                       trace);
  };
  if (exchange.warmup_steps == 0) return after_warm_up();
  return std::make_unique<parallel::WarmUp>(module, group, exchange.warmup_steps, ddp,
                                            after_warm_up);
}

std::unique_ptr<Exchange> make_quorum_exchange(const layout::Plan& plan,
                                               const TrainOptions& options,
                                               torch::nn::Module& module, quorum::Member& member,
                                               Trace* trace) {
  const bool require_finite = options.trainer.terminate_on_nan;
  const auto& outer = plan.exchange.outer;
  if (outer.is_on) {
    return make_diloco(plan.exchange, module,
                       std::make_unique<parallel::QuorumMean>(
                           member, parallel::QuorumMeanOptions{.codec = outer.codec,
                                                               .require_finite = require_finite}),
                       trace);
  }
  return std::make_unique<parallel::FaultTolerant>(
      module, member, parallel::FaultTolerantOptions{.require_finite = require_finite});
}

std::unique_ptr<Exchange> make_swarm_exchange(const layout::Plan& plan, torch::nn::Module& module,
                                              parallel::SwarmMember& member, Trace* trace) {
  const auto& outer = plan.exchange.outer;
  if (!outer.is_on) return std::make_unique<parallel::SwarmExchange>(module, member);
  return std::make_unique<parallel::LocalUpdates>(
      module, member, parallel::LocalUpdatesOptions{.outer = outer_options(outer), .trace = trace});
}

std::unique_ptr<Exchange> make_replica_exchange(const layout::Plan& plan,
                                                const TrainOptions& options,
                                                const OptimizerRecipe& recipe, Task& task,
                                                torch::nn::Module& module,
                                                const parallel::ReplicaPlace& place) {
  require_replicas(plan, task);
  return make_served_exchange(plan, options, recipe, module, place);
}

}  // namespace troika::train
