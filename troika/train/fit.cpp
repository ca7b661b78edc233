#include "troika/train/fit.h"

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/base/random.h"
#include "troika/compat/torch.h"
#include "troika/parallel/sync_batch_norm.h"
#include "troika/train/foreign_weights.h"
#include "troika/train/trainer.h"

namespace troika::train {

namespace {

using cluster::StopRequest;

constexpr const char* kTrainLoss = "train/loss";
constexpr const char* kEpochLoss = "train/epoch_loss";

data::LoaderOptions loader_options(const TrainOptions& options) {
  return {.workers = static_cast<int>(options.data.workers),
          .prefetch = static_cast<int>(options.data.prefetch)};
}

Callbacks in_order(Callbacks callbacks) {
  std::stable_partition(callbacks.begin(), callbacks.end(),
                        [](const auto& callback) { return !callback->monitors(); });
  std::set<std::string> names;
  for (const auto& callback : callbacks) {
    if (names.insert(callback->name()).second) continue;
    throw Error("train", ErrorKind::usage,
                {.what = "two callbacks of one name",
                 .got = callback->name(),
                 .expected = "names that differ, as states are saved under them"});
  }
  return callbacks;
}

}  // namespace

Fit::Fit(const TrainOptions& options, comm::Group group, const std::filesystem::path& folder,
         Task& task, const data::Dataset& training, const data::Dataset& validation,
         const StopQuestion& question, Callbacks callbacks)
    : options_(options),
      group_(std::move(group)),
      folder_(folder),
      task_(task),
      training_(training),
      validation_(validation),
      ranks_{group_.rank(), group_.size()},
      batch_(global_batch(options, group_.size())),
      passes_(accumulation(options).passes),
      sampler_({.size = training.size(),
                .global_batch = batch_,
                .seed = static_cast<uint64_t>(options.run.seed),
                .ranks = ranks_}),
      limits_(
          make_limits(options, sampler_.steps_left({}), (validation.size() + batch_ - 1) / batch_)),
      stop_(group_, question,
            std::isfinite(limits_.seconds) || std::isfinite(limits_.seconds_of_checkpoint)),
      log_(group_, MetricLog::Stage::training),
      evaluation_log_(group_, MetricLog::Stage::evaluation),
      callbacks_(in_order(std::move(callbacks))),
      context_{.options = options,
               .group = group_,
               .folder = folder,
               .task = task,
               .at = at_,
               .log = &log_} {
  for (const auto& callback : callbacks_) hooks_.push_back(callback.get());
  hooks_.push_back(&task_.hooks());
  if (options.trainer.deterministic) {
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  }
  torch::manual_seed(
      mix(static_cast<uint64_t>(options.run.seed), static_cast<uint64_t>(group_.rank()) + 1));
  const auto checkpoint = checkpoint_to_load();
  std::optional<CheckpointReader> saved;
  if (!checkpoint.empty()) {
    saved.emplace(checkpoint, group_.rank());
    require_resumable(*saved);
  } else if (!options.weights.path.empty()) {
    take_weights(task_.module(), options.weights.path, options.weights.strict);
  }
  // Before any group is split off.
  settle_links(saved);
  if (options.trainer.sync_batchnorm) parallel::convert_batch_norm(task_.module(), group_);
  if (options.trainer.trace) timeline_.emplace(group_);
  times_ = StepTimes(trace());
  int64_t steps = planned_steps();
  if (options.trainer.max_steps >= 0) steps = std::min(steps, options.trainer.max_steps);
  training_step_.emplace(options, task_, group_, steps, batch_, trace(), [this] {
    context_.learning_rate = training_step_->optimization().learning_rate();
    call(&Hooks::on_before_optimizer_step);
  });
  if (options.checkpoint.async) writer_.emplace(group_, options);
  if (saved) restore(*saved);
  // A checkpoint of another run does not go with this one's rows.
  std::error_code none;
  const bool is_ours = !checkpoint.empty() &&
                       std::filesystem::equivalent(checkpoint.parent_path(), checkpoints(), none);
  outputs_.emplace(is_main(), folder_, options, is_ours ? std::optional(at_.step) : std::nullopt);
}

Fit::~Fit() {
  task_.log_to(nullptr, 1);
  // The module may outlive the ranks' being together.
  if (options_.trainer.sync_batchnorm) parallel::localize_batch_norm(task_.module());
}

int64_t Fit::planned_steps() const {
  // The last step of an epoch may be of fewer passes.
  return (limits_.passes + passes_ - 1) / passes_ * options_.trainer.max_epochs;
}

data::SamplerState Fit::sampler_state() const {
  const bool overfits = options_.trainer.overfit_batches != "0";
  return {overfits ? 0 : at_.epoch, at_.position};
}

int64_t Fit::passes_left() const {
  const int64_t left = sampler_.steps_left(sampler_state());
  if (limits_.passes == sampler_.steps_left({})) return left;
  // A checkpoint of another batch size may be beyond the limit.
  const int64_t allowed = (limits_.passes * batch_ - at_.position) / batch_;
  return std::clamp(allowed, int64_t{0}, left);
}

StopRequest Fit::run() {
  call(&Hooks::on_fit_start);
  if (checkpoint_.empty() && limits_.sanity_batches > 0) check_sanity();
  call(&Hooks::on_train_start);
  while (at_.epoch < options_.trainer.max_epochs && !context_.is_done()) {
    train_epoch();
    if (stop_.asked() != StopRequest::none) {
      if (saved_samples_ != at_.samples) save(/*to_go_on=*/true);
      break;
    }
    end_epoch();
  }
  finish_saving();
  if (is_main() && !context_.stop_reason.empty()) {
    log::info("stopped at step {}: {}", at_.step, context_.stop_reason);
  }
  call(&Hooks::on_train_end);
  call(&Hooks::on_fit_end);
  if (timeline_) write_timeline();
  return stop_.asked();
}

void Fit::tell(const std::exception& problem) {
  try {
    call(&Hooks::on_exception, problem);
  } catch (const std::exception& another) {
    log::error("in on_exception: {}", another.what());
  }
}

void Fit::train_epoch() {
  const auto from = sampler_state();
  int64_t count = passes_left();
  if (options_.trainer.max_steps >= 0) {
    count = std::min(count, (options_.trainer.max_steps - at_.step) * passes_ - at_.pass);
  }
  auto batches = sampler_.batches(from);
  batches.resize(static_cast<size_t>(count));
  data::Loader loader(training_, std::move(batches), sampler_.augmentation_seed(from.epoch),
                      loader_options(options_));
  const int64_t done = at_.position / batch_;
  outputs_->start_progress(fmt::format("epoch {}/{}", at_.epoch + 1, options_.trainer.max_epochs),
                           done + count, done);
  task_.module().train();
  if (at_.position == 0) call(&Hooks::on_train_epoch_start);
  Stopwatch training;
  double seconds_before = at_.train_seconds;
  interval_.restart();
  interval_samples_ = 0;
  step_seconds_ = 0;
  times_.start();
  for (int64_t i = 0; const auto batch = loader.next(); ++i) {
    const int64_t passes = at_.pass + 1;
    train_batch(*batch, passes == passes_ || i + 1 == count);
    at_.train_seconds = seconds_before + training.seconds();
    if (i + 1 < count && is_validation_due(passes)) {
      training_step_->agree();
      validate();
      seconds_before = at_.train_seconds;
      training.restart();
      interval_.restart();
      interval_samples_ = 0;
    }
    if (context_.checkpoint_asked) save(!options_.checkpoint.weights_only);
    if (writer_ && writer_->is_done()) finish_saving();
    const bool is_asked = stop_.after_pass(seconds());
    context_.seconds = stop_.seconds();
    if (context_.seconds > limits_.seconds) context_.ask_to_stop("trainer.max_time is over");
    if (is_asked || (at_.pass == 0 && context_.is_done())) break;
    times_.start();
  }
  outputs_->finish_progress();
}

void Fit::train_batch(const data::Batch& batch, bool is_last) {
  times_.begin(at_.step);
  const Stopwatch one;
  log_.start_batch(batch.size());
  task_.log_to(&log_, batch.size());
  call(&Hooks::on_train_batch_start, batch);
  const double loss =
      training_step_->pass(batch, at_.pass == 0, is_last, at_.step, times_).item<double>();
  log_.log(kTrainLoss, loss, {.sync_dist = true});
  log_.log(kEpochLoss, loss, {.on_step = false, .on_epoch = true, .sync_dist = true});
  at_.position += batch_;
  at_.samples += batch_;
  at_.pass = is_last ? 0 : at_.pass + 1;
  step_seconds_ += one.seconds();
  interval_samples_ += batch_;
  outputs_->advance(batch_, loss);
  if (is_last) {
    ++at_.step;
    step_milliseconds_.add(std::exchange(step_seconds_, 0) * 1e3);
    if (at_.step % options_.trainer.log_every_n_steps == 0) log_training();
  }
  call(&Hooks::on_train_batch_end, batch, loss);
  times_.finish();
}

void Fit::log_row(const MetricValues& common, const LoggedRow& row, const MetricValues& own) {
  context_.row = row.common;
  context_.row.insert(context_.row.end(), common.begin(), common.end());
  for (const auto& [name, value] : context_.row) at_.metrics[name] = value;
  MetricValues values{{"epoch", static_cast<double>(at_.epoch)}};
  for (const auto* more : {&row.values, &common, &own}) {
    values.insert(values.end(), more->begin(), more->end());
  }
  outputs_->log(at_.step, values);
  outputs_->show(row.prog_bar);
}

void Fit::log_training() {
  const auto& optimization = training_step_->optimization();
  MetricValues common{{"train/lr", optimization.learning_rate()}};
  const auto loss_scale = optimization.loss_scale();
  if (loss_scale) common.emplace_back("train/loss_scale", *loss_scale);
  log_row(
      common, log_.end_interval(),
      {{"train/samples_per_second", static_cast<double>(interval_samples_) / interval_.seconds()}});
  interval_samples_ = 0;
  interval_.restart();
}

void Fit::log_epoch() {
  // Not where max_steps has cut it short: a run with more steps goes on there.
  const bool goes_on = passes_left() > 0;
  const auto before = goes_on ? log_.state() : at::Tensor();
  log_row({}, log_.end_epoch());
  if (goes_on) {
    log_.clear();
    log_.add_state(before);
  }
  at_.train_loss = at_.metrics.at(kEpochLoss);
}

void Fit::end_epoch() {
  training_step_->agree();
  const bool validates =
      limits_.validation_batches > 0 &&
      (context_.is_last_epoch() || (at_.epoch + 1) % options_.trainer.check_val_every_n_epoch == 0);
  if (validates) validate();
  const auto call_callbacks = [&](bool that_monitor) {
    for (const auto& callback : callbacks_) {
      if (callback->monitors() == that_monitor) callback->on_train_epoch_end(context_);
    }
  };
  call_callbacks(false);
  task_.hooks().on_train_epoch_end(context_);
  log_epoch();
  call_callbacks(true);
  if (is_main() && validates) {
    log::info("epoch {}/{}: train loss {:.4f}, validation loss {:.4f}, accuracy {:.2f} %",
              at_.epoch + 1, options_.trainer.max_epochs, at_.train_loss, at_.validation_loss,
              100 * at_.validation_accuracy);
  }
  if (passes_left() == 0) {
    ++at_.epochs;
    ++at_.epoch;
    at_.position = 0;
  }
  if (context_.checkpoint_asked) save(!options_.checkpoint.weights_only);
}

bool Fit::is_validation_due(int64_t passes) const {
  if (at_.pass > 0 || limits_.validation_batches == 0) return false;
  if ((at_.epoch + 1) % options_.trainer.check_val_every_n_epoch != 0) return false;
  const int64_t done = at_.position / batch_;
  return done / limits_.validation_every > (done - passes) / limits_.validation_every;
}

void Fit::check_sanity() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const auto random = generator.get_state();
  training_step_->agree();
  task_.module().eval();
  evaluate(limits_.sanity_batches, /*with_hooks=*/false);
  evaluation_log_.end_epoch();
  evaluation_log_.clear();
  generator.set_state(random);
}

void Fit::validate() {
  const TraceSpan span(trace(), "compute", "validation");
  context_.log = &evaluation_log_;
  task_.module().eval();
  call(&Hooks::on_validation_start);
  call(&Hooks::on_validation_epoch_start);
  const Evaluation evaluation = evaluate(limits_.validation_batches, /*with_hooks=*/true);
  call(&Hooks::on_validation_epoch_end);
  at_.validation_loss = evaluation.loss.value(group_, "validation loss");
  at_.validation_accuracy = evaluation.accuracy.value(group_, "validation accuracy");
  training_step_->judge(at_.validation_loss);
  log_row(
      {{"validation/loss", at_.validation_loss}, {"validation/accuracy", at_.validation_accuracy}},
      evaluation_log_.end_epoch());
  call(&Hooks::on_validation_end);
  context_.log = &log_;
  task_.log_to(&log_, batch_ / group_.size());
  task_.module().train();
}

Evaluation Fit::evaluate(int64_t batches, bool with_hooks) {
  const at::NoGradGuard no_grad;
  const nn::Autocast autocast(training_step_->precision(), at::kCPU);
  data::Loader loader(validation_,
                      data::evaluation_batches(std::min(validation_.size(), batches * batch_),
                                               batch_ / group_.size(), ranks_),
                      {}, loader_options(options_));
  Evaluation evaluation;
  while (const auto batch = loader.next()) {
    evaluation_log_.start_batch(batch->size());
    task_.log_to(&evaluation_log_, batch->size());
    if (with_hooks) call(&Hooks::on_validation_batch_start, *batch);
    task_.validation_step(training_step_->cast(*batch), evaluation);
    if (with_hooks) call(&Hooks::on_validation_batch_end, *batch);
  }
  return evaluation;
}

void Fit::write_timeline() {
  timeline_->write(folder_ / "trace.json");
  if (!is_main()) return;
  log::info("timeline of the first {} steps: {} (for ui.perfetto.dev, or troika report {})",
            std::min(at_.step, trace()->steps()), (folder_ / "trace.json").string(),
            folder_.string());
}

RunSummary Fit::summary(const std::string& status) const {
  RunSummary summary = bare_summary(options_, group_, folder_, status);
  summary.steps = at_.step;
  summary.samples = at_.samples;
  summary.epochs = at_.epochs;
  summary.train_loss = at_.train_loss;
  summary.validation_loss = at_.validation_loss;
  summary.validation_accuracy = at_.validation_accuracy;
  summary.samples_per_second = static_cast<double>(summary.samples) / at_.train_seconds;
  summary.median_step_milliseconds = step_milliseconds_.value();
  summary.seconds = since_start_.seconds();
  if (!checkpoint_.empty()) summary.checkpoint = (checkpoint_ / kWeightsFile).string();
  return summary;
}

}  // namespace troika::train
