#include "troika/train/loop/fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/base/text.h"
#include "troika/checkpoint/foreign_weights.h"
#include "troika/checkpoint/resume.h"
#include "troika/compat/torch.h"
#include "troika/train/callbacks/callbacks.h"
#include "troika/train/engine/random_state.h"
#include "troika/train/options/limits.h"
#include "troika/train/run/run_summary.h"

namespace troika::train {

namespace {

using cluster::StopRequest;

}  // namespace

Fit::~Fit() {
  task_.log_to(nullptr, 1);
}

int64_t Fit::planned_steps() const {
  const auto& trainer = options_.trainer;
  if (trainer.max_epochs < 0) return std::max<int64_t>(trainer.max_steps, 0);
  // The last step of an epoch may have fewer micro-batches.
  const int64_t steps =
      (limits_.micro_batches + plan_.micro_batches - 1) / plan_.micro_batches * trainer.max_epochs;
  return trainer.max_steps < 0 ? steps : std::min(steps, trainer.max_steps);
}

std::string Fit::epoch_text() const {
  const int64_t all = options_.trainer.max_epochs;
  return all < 0 ? fmt::format("{}", at_.epoch + 1) : fmt::format("{}/{}", at_.epoch + 1, all);
}

data::SamplerState Fit::sampler_state() const {
  return {overfits(options_) ? 0 : at_.epoch, at_.position};
}

int64_t Fit::passes_left() const {
  const int64_t left = sampler_.steps_left(sampler_state());
  if (limits_.micro_batches == sampler_.steps_left({})) return left;
  // The position in a checkpoint of another batch size may be beyond the limit.
  const int64_t allowed = (limits_.micro_batches * batch_ - at_.position) / batch_;
  return std::clamp(allowed, int64_t{0}, left);
}

StopRequest Fit::run() {
  warnings_.emplace(is_main());
  call_on_fit_start();
  if (checkpoint_.empty() && limits_.sanity_batches > 0) check_sanity();
  hooks_.call("on_train_start", &Hooks::on_train_start);
  write_asked();
  go_on();
  finish_saving();
  if (is_main() && !context_.stop_reason.empty()) {
    log::info("stopped at step {}: {}", at_.step, context_.stop_reason);
  }
  hooks_.call("on_train_end", &Hooks::on_train_end);
  write_asked();
  hooks_.call("on_fit_end", &Hooks::on_fit_end);
  write_asked();
  outputs_->flush();
  if (timeline_) write_timeline();
  if (profile_ && is_main()) profile_->report(folder_, run_mode_name(RunMode::fit));
  return stop_.asked();
}

void Fit::go_on() {
  // The checkpoint was saved after the last step but before its validation.
  if (context_.is_done() && at_.ended_step != at_.step && !is_beyond_limits()) end_epoch();
  while (!is_stopping() && !context_.is_done()) {
    train_epoch();
    if (!is_stopping()) end_epoch();
  }
  if (is_stopping() && saved_samples_ != at_.samples) save(/*to_go_on=*/true);
  write_asked();
  // Also if no step was left: the module must be whole after the run.
  engine_->synchronize_replicas();
}

bool Fit::is_beyond_limits() const {
  const auto& limits = options_.trainer;
  return (limits.max_steps >= 0 && at_.step > limits.max_steps) ||
         (limits.max_epochs >= 0 && at_.epoch >= limits.max_epochs);
}

void Fit::log_row(const observe::MetricValues& common, const observe::LoggedRow& row,
                  const observe::MetricValues& own) {
  context_.row = row.common;
  context_.row.insert(context_.row.end(), common.begin(), common.end());
  for (const auto& [name, value] : context_.row) at_.metrics[name] = value;
  observe::MetricValues values{{"epoch", static_cast<double>(at_.epoch)}};
  for (const auto* more : {&row.values, &common, &own}) {
    values.insert(values.end(), more->begin(), more->end());
  }
  outputs_->log(at_.step, values);
  ++at_.rows;
  outputs_->show(row.prog_bar);
}

void Fit::log_training() {
  take_losses();
  const auto& optimization = engine_->optimization();
  observe::MetricValues common{{"train/lr", optimization.learning_rate()}};
  const auto loss_scale = optimization.loss_scale();
  if (loss_scale) common.emplace_back("train/loss_scale", *loss_scale);
  log_row(common, log_.end_interval(), {{"train/samples_per_second", clock_.samples_per_second()}});
  clock_.start_interval();
}

void Fit::log_epoch() {
  // If max_steps has cut the epoch short, the log is kept: a run with more steps resumes the epoch.
  const bool goes_on = passes_left() > 0;
  const auto before = goes_on ? log_.state() : at::Tensor();
  log_row({}, log_.end_epoch());
  if (goes_on) {
    log_.clear();
    log_.add_state(before);
  }
  at_.train_loss = at_.metrics.at(observe::kEpochLoss);
}

bool Fit::validates_after_epoch() const {
  return limits_.validation_batches > 0 &&
         (context_.is_last_epoch() ||
          (at_.epoch + 1) % options_.trainer.check_val_every_n_epoch == 0);
}

void Fit::end_epoch() {
  take_losses();
  engine_->synchronize_replicas();
  const bool validates = validates_after_epoch();
  // If a validation has ended the run, the same weights are not validated again.
  if (validates && validated_samples_ != at_.samples && !validate()) return;
  at_.ended_step = at_.step;
  hooks_.call_those(false, "on_train_epoch_end", &Hooks::on_train_epoch_end);
  log_epoch();
  hooks_.call_those(true, "on_train_epoch_end", &Hooks::on_train_epoch_end);
  if (is_main() && validates) {
    auto text =
        fmt::format("epoch {}: train loss {}", epoch_text(), human_number(at_.train_loss, 4));
    if (at_.metrics.contains(observe::kValidationLoss)) {
      text += fmt::format(", validation loss {}", human_number(at_.validation_loss, 4));
    }
    if (at_.metrics.contains(observe::kValidationAccuracy)) {
      text += fmt::format(", accuracy {:.2f} %", 100 * at_.validation_accuracy);
    }
    log::info("{}", text);
  }
  if (passes_left() == 0) {
    ++at_.epoch;
    at_.position = 0;
  }
  save_asked();
}

bool Fit::is_validation_due(int64_t passes) const {
  if (at_.micro_batch > 0 || limits_.validation_batches == 0) return false;
  if ((at_.epoch + 1) % options_.trainer.check_val_every_n_epoch != 0) return false;
  const int64_t done = at_.position / batch_;
  return done / limits_.validation_every > (done - passes) / limits_.validation_every;
}

void Fit::check_sanity() {
  const observe::Profile::Span span(profile(), "run_sanity_check");
  const auto random = random_state(device());
  engine_->synchronize_replicas();
  const auto metrics = validation_loop(limits_.sanity_batches).rehearse(evaluation_log_);
  require_monitored(callbacks_, options_, task_, metrics, /*warns=*/is_main());
  load_random_state(device(), random);
}

EvaluationLoop Fit::validation_loop(int64_t batches) {
  return {RunMode::validate, context_, *engine_, validation_, batches, stop_};
}

bool Fit::validate() {
  take_losses();
  const TraceSpan span(trace(), "compute", "validation");
  const observe::Profile::Span profiled(profile(), "run_validation");
  // Saved because an interrupted validation is repeated with the same random numbers.
  const auto random = random_state(device());
  at_.validating = 1;
  const bool is_whole =
      validation_loop(limits_.validation_batches)
          .run(hooks_, evaluation_log_, [this](const EvaluationLoop::Result& result) {
            at_.validation_loss = result.loss.value_or(NAN);
            at_.validation_accuracy = result.accuracy.value_or(NAN);
            engine_->judge(result.loss);
            log_row(result.metrics(RunMode::validate), result.row);
          });
  context_.log = &log_;
  task_.log_to(&log_, batch_ / groups_.data().size());
  task_.module().train();
  if (is_whole) {
    at_.validating = 0;
    validated_samples_ = at_.samples;
  } else {
    load_random_state(device(), random);
  }
  return is_whole;
}

void Fit::run_training_data() {
  task_.log_to(nullptr, 1);
  const auto& placement = engine_->placement();
  const at::NoGradGuard no_grad;
  const nn::Autocast autocast(placement.precision, placement.device.type());
  const data::SamplerState start{sampler_state().epoch, 0};
  auto batches = sampler_.batches(start);
  batches.resize(static_cast<size_t>(limits_.micro_batches));
  data::Loader loader(training_, std::move(batches), sampler_.augmentation_seed(start.epoch),
                      loader_options(options_));
  task_.module().train();
  while (const auto batch = loader.next()) task_.training_step(placement.place(*batch));
}

void Fit::write_timeline() {
  timeline_->write(folder_ / "trace.json", groups_.describe(world_.rank()));
  if (!is_main()) return;
  log::info("timeline of the first {} steps: {} (for ui.perfetto.dev, or troika report {})",
            std::min(at_.step, trace()->steps()), (folder_ / "trace.json").string(),
            folder_.string());
}

observe::RunSummary Fit::summary(const std::string& status) const {
  observe::RunSummary summary = empty_summary(options_, world_, folder_, status);
  summary.steps = at_.step;
  summary.samples = at_.samples;
  summary.epochs = at_.epoch;
  summary.train_loss = at_.train_loss;
  summary.validation_loss = at_.validation_loss;
  summary.validation_accuracy = at_.validation_accuracy;
  summary.samples_per_second = static_cast<double>(summary.samples) / at_.train_seconds;
  summary.median_step_milliseconds = clock_.median_step_milliseconds();
  summary.roofline = context_.roofline;
  summary.seconds = clock_.call_seconds();
  if (!checkpoint_.empty()) summary.checkpoint = (checkpoint_ / checkpoint::kWeightsFile).string();
  if (!options_.checkpoint.monitor.empty()) {
    const auto best = checkpoint::linked_checkpoint(checkpoints(), "best");
    if (!best.empty()) summary.best_checkpoint = (best / checkpoint::kWeightsFile).string();
  }
  summary.metrics = at_.metrics;
  return summary;
}

}  // namespace troika::train
