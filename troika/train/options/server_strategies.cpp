#include "troika/train/options/server_strategies.h"

#include <fmt/format.h>

#include "troika/base/error.h"
#include "troika/layout/recompute.h"
#include "troika/nn/precision.h"

namespace troika::train {

using layout::Cluster;
using layout::ExchangeMethod;
using layout::Plan;

void choose_servers(Plan& plan, const TrainOptions& options, const Cluster&) {
  const auto& server = options.server;
  plan.exchange.method = ExchangeMethod::servers;
  plan.exchange.servers = {.consistency = server.consistency,
                           .delay = server.delay,
                           .count = server.servers,
                           .replicas = server.replicas,
                           .push_filters = server.push_filters,
                           .pull_filters = server.pull_filters,
                           .limit_seconds = server.limit_seconds};
}

void choose_downpour(Plan& plan, const TrainOptions& options, const Cluster& cluster) {
  const auto& server = options.server;
  if (server.consistency == "bounded" || server.delay > 0) {
    throw Error("train", ErrorKind::usage,
                {.what = "strategy downpour does not bound how far replicas are apart",
                 .got = fmt::format("server.consistency {} and server.delay {}", server.consistency,
                                    server.delay),
                 .expected = "server.consistency eventual and server.delay 0",
                 .hint = "strategy parameter_server bounds it"});
  }
  choose_servers(plan, options, cluster);
  plan.exchange.method = ExchangeMethod::downpour;
  plan.exchange.servers.consistency = "eventual";
  const auto& own = options.downpour;
  plan.exchange.downpour = {.n_fetch = own.n_fetch,
                            .n_push = own.n_push,
                            .local_rate = own.local_rate,
                            .overlap = own.overlap,
                            .warm_start_steps = own.warm_start_steps};
}

void choose_sandblaster(Plan& plan, const TrainOptions& options, const Cluster& cluster) {
  choose_servers(plan, options, cluster);
  plan.exchange.method = ExchangeMethod::sandblaster;
  plan.exchange.sandblaster = options.sandblaster;
}

void choose_byteps(Plan& plan, const TrainOptions& options, const Cluster&) {
  const auto& server = options.server;
  const parallel::ServerSection defaults{.servers = server.servers,
                                         .limit_seconds = server.limit_seconds};
  if (server != defaults) {
    throw Error("train", ErrorKind::usage,
                {.what = "summation servers keep no parameters",
                 .got = "options of server besides servers and limit_seconds",
                 .expected = "none, with strategy byteps",
                 .hint = "strategy parameter_server has them"});
  }
  const auto& own = options.byteps;
  plan.exchange.method = ExchangeMethod::summation;
  plan.exchange.servers = {.count = server.servers, .limit_seconds = server.limit_seconds};
  plan.exchange.summation = {.partition_bytes = own.partition_bytes,
                             .credit_bytes = own.credit_bytes,
                             .priorities = own.priorities,
                             .links = own.links,
                             .cross_barrier = own.cross_barrier,
                             .asynchronous = own.asynchronous,
                             .local_sums = own.local_sums,
                             .momentum = own.momentum,
                             .dither_norm = own.dither_norm};
}

namespace {

void require_passes_of_all_samples(const TrainOptions& options, const Plan& plan) {
  const auto require = [](bool holds, const std::string& got, const std::string& expected) {
    if (holds) return;
    throw Error("train", ErrorKind::usage,
                {.what = "strategy sandblaster computes a function of all samples again and again",
                 .got = got,
                 .expected = expected});
  };
  const auto& trainer = options.trainer;
  require(trainer.limit_train_batches == "1.0",
          "trainer.limit_train_batches " + trainer.limit_train_batches, "1.0: all samples");
  require(trainer.overfit_batches == "0", "trainer.overfit_batches " + trainer.overfit_batches,
          "0: all samples");
  require(plan.micro_batches == 1, fmt::format("{} micro-batches", plan.micro_batches),
          "1: sandblaster.portions and data.batch_size set how samples are cut");
  require(!layout::recompute_budget(plan.recompute), "trainer.recompute " + plan.recompute,
          "none or full: no step is measured before the first pass");
  require(plan.offload.activations.empty(), "offload.activations " + plan.offload.activations,
          "none");
}

// Throws Error(usage) where an optimizer step that takes parameters one after the other would not
// be that of all together, or where other code reads gradients or weights at each step.
void require_steps_in_parts(const TrainOptions& options, const Plan& plan) {
  const auto refuse_if = [](bool holds, const std::string& got) {
    if (!holds) return;
    throw Error("train", ErrorKind::usage,
                {.what = "byteps.cross_barrier steps parameters before all gradients are there",
                 .got = got,
                 .expected = "none of clipping by norm, loss scaling, masters of weights, ema, "
                             "checkpoint.on_exception and statistics",
                 .hint = "byteps.cross_barrier false takes it"});
  };
  const auto& trainer = options.trainer;
  refuse_if(trainer.gradient_clip_val > 0 && trainer.gradient_clip_algorithm != "value",
            "trainer.gradient_clip_algorithm " + trainer.gradient_clip_algorithm);
  const auto precision = nn::parse_precision(plan.precision);
  refuse_if(precision.needs_masters() || precision.needs_scaler(),
            "trainer.precision " + precision.name);
  refuse_if(options.ema.enabled, "ema.enabled true");
  refuse_if(options.checkpoint.on_exception, "checkpoint.on_exception true");
  refuse_if(options.statistics.every_n_steps > 0,
            fmt::format("statistics.every_n_steps {}", options.statistics.every_n_steps));
}

void require_plain_changes(const Plan& plan) {
  const auto& sums = plan.exchange.summation;
  const bool is_short = sums.local_sums == "fp16" || sums.local_sums == "bf16";
  if (!sums.cross_barrier && sums.momentum == 0 && !is_short && plan.compression.codec == "none") {
    return;
  }
  throw Error("train", ErrorKind::usage,
              {.what = "byteps.asynchronous sends whole parameters after each step",
               .got = fmt::format("byteps.cross_barrier {}, byteps.momentum {}, byteps.local_sums "
                                  "{} and ddp.hook {}",
                                  sums.cross_barrier, sums.momentum, sums.local_sums,
                                  plan.compression.codec),
               .expected = "false, 0, plain and none"});
}

}  // namespace

void require_servers_fit(const TrainOptions& options, const Plan& plan) {
  const auto& sums = plan.exchange.summation;
  if (plan.exchange.method == ExchangeMethod::sandblaster) {
    require_passes_of_all_samples(options, plan);
  }
  if (sums.cross_barrier) require_steps_in_parts(options, plan);
  if (sums.momentum > 0 && plan.mesh.ranks() == 1) {
    throw Error("train", ErrorKind::usage,
                {.what = "byteps.momentum needs gradients that are sent",
                 .got = fmt::format("{} and one process, which sends none", sums.momentum),
                 .expected = "0, or several processes",
                 .hint = "optim.nesterov and optim.momentum do the same"});
  }
  const auto precision = nn::parse_precision(plan.precision);
  if (sums.momentum > 0 && precision.needs_scaler()) {
    throw Error("train", ErrorKind::usage,
                {.what = "byteps.momentum adds up gradients of one scale",
                 .got = "trainer.precision " + precision.name,
                 .expected = "32, 64, bf16-mixed or bf16-true"});
  }
  const auto& codec = plan.compression.codec;
  if (sums.dither_norm != "max" && codec != "dither" && codec != "natural") {
    throw Error("train", ErrorKind::usage,
                {.what = "byteps.dither_norm is for the codecs dither and natural",
                 .got = fmt::format("{} and ddp.hook {}", sums.dither_norm, codec),
                 .expected = "max, or ddp.hook dither or natural"});
  }
  if (sums.asynchronous) require_plain_changes(plan);
}

}  // namespace troika::train
