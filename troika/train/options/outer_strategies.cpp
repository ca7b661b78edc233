#include "troika/train/options/outer_strategies.h"

#include <fmt/format.h>

#include "troika/base/error.h"

namespace troika::train {

namespace {

using layout::Plan;

layout::OuterExchange outer_exchange(const parallel::DiLoCoOptions& own) {
  return {.is_on = true,
          .lr = own.outer_lr,
          .momentum = own.outer_momentum,
          .fragments = own.fragments,
          .delay = own.delay,
          .mixing = own.mixing,
          .codec = own.codec};
}

}  // namespace

void choose_diloco(Plan& plan, const TrainOptions& options, const layout::Cluster&) {
  plan.exchange.method = layout::ExchangeMethod::local_steps;
  plan.exchange.period = options.diloco.inner_steps;
  plan.exchange.warmup_steps = options.diloco.warmup_steps;
  plan.exchange.outer = outer_exchange(options.diloco);
}

void choose_swarm(Plan& plan, const TrainOptions& options, const layout::Cluster&) {
  plan.exchange.method = layout::ExchangeMethod::collaborative;
  if (!options.swarm.use_local_updates) return;
  plan.exchange.outer = outer_exchange(options.diloco);
}

void require_outer_steps_fit_swarm(const TrainOptions& options, const Plan& plan) {
  if (!plan.exchange.outer.is_on) return;
  const auto require = [](bool holds, const std::string& got, const std::string& expected,
                          const std::string& hint) {
    if (holds) return;
    throw Error("train", ErrorKind::usage,
                {.what = "a peer of a swarm trains by itself between outer steps",
                 .got = got,
                 .expected = expected,
                 .hint = hint});
  };
  const auto& own = options.diloco;
  const parallel::DiLoCoOptions defaults;
  require(!options.swarm.delay_optimizer_step, "swarm.delay_optimizer_step true", "false",
          "diloco.delay lets peers train while their changes are averaged");
  const auto& codec = plan.exchange.outer.codec;
  require(codec == defaults.codec, "diloco.codec " + codec, defaults.codec,
          "swarm.grad_compression compresses the changes");
  require(own.inner_steps == defaults.inner_steps,
          fmt::format("diloco.inner_steps {}", own.inner_steps), "none",
          "an outer step comes when the peers together have data.global_batch_size samples");
  require(own.warmup_steps == defaults.warmup_steps,
          fmt::format("diloco.warmup_steps {}", own.warmup_steps), "0",
          "model.weights begins with the weights of another run");
}

}  // namespace troika::train
