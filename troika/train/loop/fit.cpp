#include "troika/train/loop/fit.h"

#include <algorithm>
#include <set>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/checkpoint/index.h"
#include "troika/checkpoint/resume.h"
#include "troika/compat/torch.h"
#include "troika/parallel/swarm/swarm_member.h"
#include "troika/train/engine/optimization.h"
#include "troika/train/loop/start_together.h"
#include "troika/train/run/quorum_run.h"
#include "troika/train/run/run_summary.h"

namespace troika::train {

namespace {

// Puts the callbacks that monitor() last.
RunSetup in_order(RunSetup setup) {
  auto& callbacks = setup.callbacks;
  std::stable_partition(callbacks.begin(), callbacks.end(),
                        [](const auto& callback) { return !callback->monitors(); });
  std::set<std::string> names;
  for (const auto& callback : callbacks) {
    if (names.insert(callback->name()).second) continue;
    throw Error("train", ErrorKind::usage,
                {.what = "two callbacks have the same name",
                 .got = callback->name(),
                 .expected = "different names, because states are saved under them"});
  }
  return setup;
}

bool any_keeps_time(const Callbacks& callbacks) {
  return std::any_of(callbacks.begin(), callbacks.end(),
                     [](const auto& callback) { return callback->keeps_time(); });
}

}  // namespace

Fit::Fit(RunSetup setup, const StopQuestion& question)
    : setup_(in_order(std::move(setup))),
      epochs_(setup_),
      measured_(setup_),
      stop_(setup_.world(), question, any_keeps_time(setup_.callbacks)),
      context_{.options = setup_.options,
               .group = setup_.world(),
               .groups = setup_.groups,
               .folder = setup_.folder,
               .task = setup_.task,
               .at = epochs_.at(),
               .training = {.plan = &setup_.plan}},
      log_(context_, epochs_, measured_.clock()),
      origin_(setup_),
      module_changes_(setup_),
      hooks_(context_, setup_.callbacks, measured_.profile()),
      engine_(start_engine()),
      checkpoints_({.setup = setup_,
                    .origin = origin_,
                    .epochs = epochs_,
                    .measured = measured_,
                    .context = context_,
                    .log = log_,
                    .engine = *engine_}),
      validator_({.setup = setup_,
                  .epochs = epochs_,
                  .measured = measured_,
                  .stop = stop_,
                  .context = context_,
                  .log = log_,
                  .hooks = hooks_,
                  .engine = *engine_}) {
  context_.training.store = &engine_->store();
  context_.training.optimization = &engine_->optimization();
  context_.actions.run_training_data = [this] { run_training_data(); };
  context_.actions.save_weights = [this](const auto& file) { checkpoints_.save_weights(file); };
  context_.actions.save_checkpoint = [this](const auto& path, bool weights_only) {
    return checkpoints_.ask_to_save_as(path, weights_only);
  };
  context_.validation.only_at_epoch_ends = validator_.is_only_at_epoch_ends();
  context_.actions.save_alone = [this](const auto& to) { return checkpoints_.save_alone(to); };
  checkpoints_.begin_from(origin_.load({.epochs = epochs_,
                                        .clock = measured_.clock(),
                                        .context = context_,
                                        .log = log_,
                                        .engine = *engine_}));
  // The last operation that may fail, because it drops log rows later than the checkpoint.
  start_together(setup_.groups, *engine_, [this] { log_.open(origin_.id()); });
}

std::unique_ptr<Engine> Fit::start_engine() {
  measured_.begin_steps();
  return make_engine(
      {.options = setup_.options,
       .plan = setup_.plan,
       .task = setup_.task,
       .training = &setup_.training,
       .groups = setup_.groups,
       .replicas = setup_.replicas ? &*setup_.replicas : nullptr,
       .quorum = setup_.quorum ? &setup_.quorum->member() : nullptr,
       .swarm = setup_.swarm,
       .steps = epochs_.planned_steps(),
       .global_batch = epochs_.global_batch(),
       .times = measured_.times(),
       .trace = measured_.trace(),
       .before_step =
           [this] {
             context_.training.learning_rate = engine_->optimization().learning_rate();
             hooks_.call("on_before_optimizer_step", &Hooks::on_before_optimizer_step);
           },
       .stops = [this] { return stop_.ask_now(); }});
}

cluster::StopRequest Fit::run() {
  log_.begin_warnings();
  or_leave_module_whole(*engine_, [this] { hooks_.call("on_fit_start", &Hooks::on_fit_start); });
  const bool is_new = checkpoints_.latest().empty() && !setup_.joins_others();
  if (is_new && epochs_.limits().sanity_batches > 0) {
    validator_.check_sanity();
  }
  hooks_.call("on_train_start", &Hooks::on_train_start);
  checkpoints_.save_asked_paths();
  if (setup_.swarm && !context_.is_done()) join_swarm();
  if (serves_swarm()) {
    setup_.swarm->serve(epochs_.planned_steps(), [this] { return stop_.ask_now(); });
  } else {
    train_epochs();
  }
  checkpoints_.finish();
  if (setup_.quorum) leave_quorum();
  if (setup_.swarm) setup_.swarm->leave();
  if (setup_.is_main() && !context_.requests.stop_reason.empty()) {
    log::info("stopped at step {}: {}", epochs_.at().step, context_.requests.stop_reason);
  }
  hooks_.call("on_train_end", &Hooks::on_train_end);
  checkpoints_.save_asked_paths();
  hooks_.call("on_fit_end", &Hooks::on_fit_end);
  checkpoints_.save_asked_paths();
  log_.flush();
  measured_.write(epochs_.at().step);
  // An auxiliary peer has nothing to go on with.
  return serves_swarm() ? cluster::StopRequest::none : stop_.asked();
}

void Fit::tell(const std::exception& problem) {
  checkpoints_.refuse_requests();
  hooks_.tell(problem);
}

void Fit::train_epochs() {
  const auto& at = epochs_.at();
  // The checkpoint was saved after the last step but before its validation.
  if (context_.is_done() && at.ended_step != at.step && !epochs_.is_beyond_limits()) end_epoch();
  while (!is_stopping() && !context_.is_done()) {
    if (train_epoch() && !is_stopping()) end_epoch();
  }
  if (is_stopping() && !checkpoints_.has_all_samples()) checkpoints_.save(/*to_go_on=*/true);
  checkpoints_.save_asked_paths();
  // Also if no step was left: the module must be whole after the run.
  engine_->make_whole();
}

void Fit::end_epoch() {
  log_.read_losses();
  engine_->synchronize_replicas();
  const bool validates = validator_.is_due_after_epoch();
  // If a validation has ended the run, the same weights are not validated again.
  if (validates && !validator_.has_judged_weights() && !validator_.validate()) return;
  auto& at = epochs_.at();
  at.ended_step = at.step;
  hooks_.call_those(false, "on_train_epoch_end", &Hooks::on_train_epoch_end);
  log_.log_epoch();
  hooks_.call_those(true, "on_train_epoch_end", &Hooks::on_train_epoch_end);
  if (validates) log_.print_epoch();
  epochs_.leave_complete_epoch();
  checkpoints_.save_asked();
}

void Fit::run_training_data() {
  setup_.task.log_to(nullptr, 1);
  const auto& placement = engine_->placement();
  const at::NoGradGuard no_grad;
  const nn::Autocast autocast(placement.precision, placement.device.type());
  data::Loader loader = epochs_.load_all(placement.device.type());
  setup_.task.module().train();
  while (const auto batch = loader.next()) engine_->update_batch_norms(*batch);
}

RunPlan Fit::plan() const {
  const auto& options = setup_.options;
  const auto& processes = setup_.processes();
  return {
      .name = options.run.name,
      .model = options.model.name.empty() ? setup_.task.module().name() : options.model.name,
      .parameters = setup_.parameters,
      .trainable = setup_.trainable,
      .training_samples = setup_.training.size(),
      .validation_samples = setup_.validation.size(),
      .steps_made = epochs_.at().step,
      .steps = epochs_.planned_steps(),
      .steps_per_epoch = epochs_.steps_per_epoch(),
      .batch = epochs_.trained_samples(),
      .micro_batches = setup_.plan.micro_batches,
      .ranks = processes.size(),
      .replicas = setup_.plan.mesh.sample_shares(),
      .nodes = 1 + std::ranges::max(processes.nodes()),
      .backend = std::string(processes.backend()),
      .device = engine_->placement().device.str(),
      .strategy = options.trainer.plan.empty() ? options.trainer.strategy : setup_.plan.strategy,
      .precision = options.trainer.precision,
      .folder = setup_.folder.string()};
}

observe::RunSummary Fit::summary(const std::string& status) const {
  const auto& at = epochs_.at();
  const auto& checkpoint = checkpoints_.latest();
  observe::RunSummary summary =
      empty_summary(setup_.options, setup_.world(), setup_.folder, status);
  summary.steps = at.step;
  summary.samples = at.samples;
  summary.epochs = at.epoch;
  summary.train_loss = at.train_loss;
  summary.validation_loss = at.validation_loss;
  summary.validation_accuracy = at.validation_accuracy;
  summary.samples_per_second = static_cast<double>(summary.samples) / at.train_seconds;
  summary.median_step_milliseconds = measured_.clock().median_step_milliseconds();
  summary.roofline = context_.roofline;
  summary.seconds = measured_.clock().call_seconds();
  if (!checkpoint.empty()) summary.checkpoint = (checkpoint / checkpoint::kWeightsFile).string();
  if (!setup_.options.checkpoint.monitor.empty()) {
    const auto best = checkpoint::linked_checkpoint(setup_.checkpoints(), "best");
    if (!best.empty()) summary.best_checkpoint = (best / checkpoint::kWeightsFile).string();
  }
  summary.metrics = at.metrics;
  return summary;
}

}  // namespace troika::train
