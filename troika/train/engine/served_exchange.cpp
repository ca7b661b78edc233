#include "troika/train/engine/served_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/nn/precision.h"
#include "troika/parallel/servers/downpour.h"
#include "troika/parallel/servers/launched_world.h"
#include "troika/parallel/servers/sandblaster.h"
#include "troika/parallel/servers/served_parameters.h"
#include "troika/server/filter.h"
#include "troika/train/options/resolve_plan.h"

namespace troika::train {

namespace {

using Require =
    std::function<void(bool holds, const std::string& got, const std::string& expected)>;

void require_filters(const layout::ServerExchange& servers, const Require& require) {
  const auto push = server::parse_filters(servers.push_filters);
  server::check_filters(push, server::Direction::push);
  server::check_filters(server::parse_filters(servers.pull_filters), server::Direction::pull);
  const auto has = [&](server::FilterKind kind) {
    return std::ranges::any_of(push, [&](const auto& filter) { return filter.kind == kind; });
  };
  require(!has(server::FilterKind::significant) && !has(server::FilterKind::kkt),
          "server.push_filters " + servers.push_filters,
          "none of significant and kkt, whose kept gradients checkpoints would lack");
  require(!has(server::FilterKind::skip) || servers.consistency != "sequential",
          "server.push_filters " + servers.push_filters + " with server.consistency sequential",
          "no filter that leaves out gradients, or server.consistency bounded or eventual");
}

// Replicas that come to cuts at different steps would take each other's for the same.
void require_equal_cuts(const ModelCheckpointOptions& checkpoint, const Require& require) {
  require(checkpoint.train_time_interval.empty(),
          "checkpoint.train_time_interval " + checkpoint.train_time_interval,
          "none: checkpoints by steps or epochs, which all replicas make together");
  require(!checkpoint.monitor.starts_with("train/"), "checkpoint.monitor " + checkpoint.monitor,
          "a metric of validations, which all replicas share");
}

void require_lbfgs(const layout::Plan& plan, const TrainOptions& options,
                   const OptimizerRecipe& recipe) {
  const auto require = [&](bool holds, const std::string& got, const std::string& expected) {
    if (holds) return;
    throw Error("train", ErrorKind::usage,
                {.what = "strategy " + plan.strategy + " steps parameters by L-BFGS on servers",
                 .got = got,
                 .expected = expected});
  };
  require(!recipe.make, "an optimizer of configure_optimizers()", "none");
  const auto& clip = options.trainer.gradient_clip_val;
  require(clip == 0, fmt::format("trainer.gradient_clip_val {}", clip),
          "0: the line search needs gradients as they are");
  const auto precision = nn::parse_precision(plan.precision);
  require(precision.name == "32" || precision.name == "64", "trainer.precision " + precision.name,
          "32 or 64: rounding to 16 bits hides what the line search compares");
  require(plan.compression.codec == "none", "ddp.hook " + plan.compression.codec, "none");
  require(plan.offload.optimizer.empty(), "offload.optimizer " + plan.offload.optimizer,
          "none: servers keep the vectors");
  require(options.swa.swa_lrs == 0, fmt::format("swa.swa_lrs {}", options.swa.swa_lrs),
          "0: iterates are not a course to average");
}

void require_servable(const layout::Plan& plan, const TrainOptions& options,
                      const OptimizerRecipe& recipe, const torch::nn::Module& module) {
  const Require require = [&](bool holds, const std::string& got, const std::string& expected) {
    if (holds) return;
    throw Error("train", ErrorKind::usage,
                {.what = "strategy " + plan.strategy + " steps parameters on servers",
                 .got = got,
                 .expected = expected});
  };
  const auto& trainer = options.trainer;
  require(trainer.gradient_clip_val == 0,
          "trainer.gradient_clip_val " + std::to_string(trainer.gradient_clip_val),
          "0: no rank has the mean gradient that would be clipped");
  const auto& name = recipe.optimizer.name;
  const bool is_downpour = plan.exchange.method == layout::ExchangeMethod::downpour;
  const std::string optimizers =
      is_downpour ? "optim.name sgd or adagrad" : "optim.name sgd, adam, adamw or adagrad";
  require(!recipe.make, "an optimizer of configure_optimizers()", optimizers);
  const bool is_adam = name == "adam" || name == "adamw";
  require(name == "sgd" || name == "adagrad" || (is_adam && !is_downpour), "optim.name " + name,
          optimizers);
  const auto precision = nn::parse_precision(plan.precision);
  require(!precision.needs_masters() && !precision.needs_scaler(),
          "trainer.precision " + precision.name, "32, 64 or bf16-mixed");
  for (const auto& parameter : module.parameters()) {
    require(parameter.is_cpu(), "parameters on " + parameter.device().str(),
            "trainer.accelerator cpu");
  }
  require(plan.compression.codec == "none", "ddp.hook " + plan.compression.codec,
          "none; server.push_filters compress gradients");
  require(plan.offload.optimizer.empty(), "offload.optimizer " + plan.offload.optimizer,
          "none: servers keep the states");
  require_filters(plan.exchange.servers, require);
  if (is_downpour) require_equal_cuts(options.checkpoint, require);
}

}  // namespace

TrainOptions with_launched_servers(TrainOptions options, const server::WorldOptions& role) {
  const auto workers = layout::Cluster::uniform(1, role.workers);
  const auto refuse = [&](const std::string& got, const std::string& expected) {
    throw Error(
        "train", ErrorKind::usage,
        {.what = "servers were launched beside the ranks", .got = got, .expected = expected});
  };
  auto& servers = options.server.servers;
  if (servers == 0) servers = role.servers;
  const auto plan = resolve_plan(options, workers);
  if (!plan.has_servers() && plan.exchange.method != layout::ExchangeMethod::summation) {
    refuse("strategy " + plan.strategy,
           "strategy parameter_server, downpour, sandblaster or byteps");
  }
  if (plan.exchange.servers.count != role.servers) {
    refuse(fmt::format("server.servers {}", plan.exchange.servers.count),
           fmt::format("the {} that were launched", role.servers));
  }
  return options;
}

TrainOptions with_searched_servers(TrainOptions options,
                                   const std::optional<layout::Cluster>& described) {
  const auto role = parallel::launched_role();
  const auto require = [](bool holds, const char* what, const std::string& got,
                          const std::string& expected) {
    if (holds) return;
    throw Error("train", ErrorKind::usage, {.what = what, .got = got, .expected = expected});
  };
  if (role.role == server::WorldRole::alone) {
    const size_t spares = described ? described->spares.size() : 0;
    require(spares == 0, "spare hosts of --cluster, and no servers were launched",
            std::to_string(spares), fmt::format("0, or troika launch --servers {}", spares));
    return options;
  }
  const auto plan = resolve_plan(options, layout::Cluster::uniform(1, role.workers));
  if (plan.has_servers() || plan.exchange.method == layout::ExchangeMethod::summation) {
    return options;
  }
  const bool is_plain = plan.exchange.method == layout::ExchangeMethod::all_reduce &&
                        plan.schedule == layout::kOneStageSchedule && plan.threads == 0 &&
                        plan.mesh.ranks() == plan.mesh.size(layout::Axis::data) &&
                        plan.micro_batches == options.trainer.accumulate_grad_batches;
  require(is_plain, "--plan auto in a launch with servers replaces data parallelism",
          "strategy " + plan.strategy, "strategy auto, ddp or byteps");
  return with_strategy(options, kSummationStrategy);
}

void serve_parameters(const TrainOptions& options, const server::WorldOptions& role) {
  const auto plan = resolve_plan(options, layout::Cluster::uniform(1, role.workers));
  auto own = role;
  own.protection = net::protection_from(options.comm.protection);
  parallel::serve(own, plan.exchange);
}

std::unique_ptr<parallel::Exchange> make_served_exchange(const layout::Plan& plan,
                                                         const TrainOptions& options,
                                                         const OptimizerRecipe& recipe,
                                                         torch::nn::Module& module,
                                                         const parallel::ReplicaPlace& place) {
  if (plan.exchange.method == layout::ExchangeMethod::sandblaster) {
    require_lbfgs(plan, options, recipe);
    return std::make_unique<parallel::Sandblaster>(
        module, place.replicas,
        parallel::SandblasterOptions{.servers = plan.exchange.servers,
                                     .sandblaster = plan.exchange.sandblaster});
  }
  require_servable(plan, options, recipe, module);
  parallel::ServedOptions served{.servers = plan.exchange.servers, .optimizer = recipe.optimizer};
  served.optimizer_of = [&recipe](const optim::Parameter& parameter) {
    return options_of(recipe, parameter);
  };
  if (plan.exchange.method == layout::ExchangeMethod::downpour) {
    return std::make_unique<parallel::Downpour>(
        module, place,
        parallel::DownpourOptions{.served = served, .downpour = plan.exchange.downpour});
  }
  return std::make_unique<parallel::ServedParameters>(module, place.replicas, served);
}

}  // namespace troika::train
