// Fit's part in a swarm.
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "troika/base/log.h"
#include "troika/base/random.h"
#include "troika/base/temporary_folder.h"
#include "troika/compat/torch.h"
#include "troika/parallel/swarm/swarm_store.h"
#include "troika/swarm/identity.h"
#include "troika/train/loop/fit.h"
#include "troika/train/options/limits.h"
#include "troika/train/run/packed_folder.h"

namespace troika::train {

namespace {

// The options of averages that all peers must share.
std::string description_of_average(const parallel::SwarmSection& options,
                                   const layout::OuterExchange& outer) {
  auto text = fmt::format("swarm.aggregation {}, swarm.target_group_size {}", options.aggregation,
                          options.target_group_size);
  text += ", swarm.grad_compression " + options.grad_compression;
  if (options.grad_compression != "none") {
    text += fmt::format(" from {} elements", options.grad_compression_threshold);
  }
  if (options.delay_optimizer_step) text += ", swarm.delay_optimizer_step true";
  if (outer.is_on) {
    text += fmt::format(
        ", swarm.use_local_updates true, diloco.outer_lr {}, outer_momentum {}, fragments {}",
        outer.lr, outer.momentum, outer.fragments);
  }
  return text;
}

}  // namespace

bool Fit::serves_swarm() const {
  return setup_.swarm && setup_.swarm->is_auxiliary();
}

void Fit::join_swarm() {
  auto& swarm = *setup_.swarm;
  const auto& options = setup_.options;
  const auto& store = dynamic_cast<const parallel::SwarmStore&>(engine_->store());
  const auto seed = mix(static_cast<uint64_t>(options.run.seed),
                        std::stoull(swarm.name().substr(0, 16), nullptr, 16),
                        static_cast<uint64_t>(epochs_.at().step));
  own_order_ = std::make_unique<OwnOrder>(
      setup_.training, std::min(options.data.batch_size, epochs_.global_batch()), seed,
      loader_options(options, engine_->placement().device.type()));
  const auto optimizer = options.optimizer.name;
  const auto average = description_of_average(options.swarm, setup_.plan.exchange.outer);
  // All that makes two peers' states unequal, or of no use to each other.
  const auto schema = fmt::format("{}{} {} {} {}", store.schema(), optimizer, options.run.seed,
                                  swarm.target_batch(), average);
  if (options.swarm.grad_compression != "none" && !store.compresses()) {
    log::warn(
        "[swarm] swarm.grad_compression {} compresses nothing: no parameter has {} elements "
        "(swarm.grad_compression_threshold)",
        options.swarm.grad_compression, options.swarm.grad_compression_threshold);
  }
  engine_->fetch_states();
  swarm.begin({.step = epochs_.at().step + store.steps_ahead(),
               .state = store.digest(),
               .schema = swarm::digest_of(schema),
               .model = fmt::format(
                   "{} with {} trained parameters, {}, run.seed {}, {}",
                   options.model.name.empty() ? setup_.task.module().name() : options.model.name,
                   setup_.trainable, optimizer, options.run.seed, average),
               .is_double = store.is_double(),
               .exact = store.exact(),
               .save =
                   [this] {
                     const TemporaryFolder folder;
                     return packed(checkpoints_.save_for_replica(folder.path()));
                   }},
              [this] { return stop_.ask_now(); });
}

bool Fit::take_swarm_state() {
  const auto state = setup_.swarm->take_state([this] { return stop_.ask_now(); });
  if (!state) return false;
  const TemporaryFolder folder;
  unpack(*state, folder.path());
  origin_.take(folder.path(), {.epochs = epochs_,
                               .clock = measured_.clock(),
                               .context = context_,
                               .log = log_,
                               .engine = *engine_});
  dynamic_cast<parallel::SwarmStore&>(engine_->store()).join();
  log::info("[swarm] has the state of step {}", epochs_.at().step);
  return true;
}

}  // namespace troika::train
