#include "troika/train/fit.h"

#include <fmt/format.h>

#include <limits>
#include <utility>

#include "troika/base/log.h"
#include "troika/base/random.h"
#include "troika/compat/torch.h"
#include "troika/parallel/sync_batch_norm.h"
#include "troika/train/trainer.h"

namespace troika::train {

namespace {

using cluster::StopRequest;

data::LoaderOptions loader_options(const TrainOptions& options) {
  return {.workers = static_cast<int>(options.data.workers),
          .prefetch = static_cast<int>(options.data.prefetch)};
}

}  // namespace

Fit::Fit(const TrainOptions& options, comm::Group group, const std::filesystem::path& folder,
         Task& task, const data::Dataset& training, const data::Dataset& validation,
         const StopQuestion& question)
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
      stop_(group_, question) {
  torch::manual_seed(
      mix(static_cast<uint64_t>(options.run.seed), static_cast<uint64_t>(group_.rank()) + 1));
  if (options.trainer.sync_batchnorm) parallel::convert_batch_norm(task_.module(), group_);
  if (options.trainer.trace) timeline_.emplace(group_);
  times_ = StepTimes(trace());
  int64_t steps = planned_steps();
  if (options.trainer.max_steps >= 0) steps = std::min(steps, options.trainer.max_steps);
  training_step_.emplace(options, task_, group_, steps, batch_, trace());
  if (options.checkpoint.async) writer_.emplace(group_, options);
  const auto checkpoint = checkpoint_to_load();
  if (!checkpoint.empty()) restore(checkpoint);
  // A checkpoint of another run does not go with this one's rows.
  std::error_code none;
  const bool is_ours = !checkpoint.empty() &&
                       std::filesystem::equivalent(checkpoint.parent_path(), checkpoints(), none);
  outputs_.emplace(is_main(), folder_, options, is_ours ? std::optional(at_.step) : std::nullopt);
}

Fit::~Fit() {
  // The module may outlive the ranks' being together.
  if (options_.trainer.sync_batchnorm) parallel::localize_batch_norm(task_.module());
}

int64_t Fit::planned_steps() const {
  // The last step of an epoch may be of fewer passes.
  return (sampler_.steps_left({}) + passes_ - 1) / passes_ * options_.trainer.max_epochs;
}

bool Fit::at_step_limit() const {
  return options_.trainer.max_steps >= 0 && at_.step >= options_.trainer.max_steps;
}

StopRequest Fit::run() {
  while (at_.epoch < options_.trainer.max_epochs && !at_step_limit()) {
    train_epoch();
    if (stop_.asked() != StopRequest::none) {
      if (saved_samples_ != at_.samples) save();
      break;
    }
    end_epoch();
  }
  finish_saving();
  if (timeline_) write_timeline();
  return stop_.asked();
}

void Fit::train_epoch() {
  const data::SamplerState from{at_.epoch, at_.position};
  int64_t count = sampler_.steps_left(from);
  if (options_.trainer.max_steps >= 0) {
    count = std::min(count, (options_.trainer.max_steps - at_.step) * passes_ - at_.pass);
  }
  auto batches = sampler_.batches(from);
  batches.resize(static_cast<size_t>(count));
  data::Loader loader(training_, std::move(batches), sampler_.augmentation_seed(at_.epoch),
                      loader_options(options_));
  const int64_t done = at_.position / batch_;
  outputs_->start_progress(fmt::format("epoch {}/{}", at_.epoch + 1, options_.trainer.max_epochs),
                           done + count, done);
  task_.module().train();
  const Stopwatch whole;
  const double seconds_before = at_.train_seconds;
  interval_.restart();
  interval_samples_ = 0;
  step_seconds_ = 0;
  times_.start();
  for (int64_t i = 0; const auto batch = loader.next(); ++i) {
    train_batch(*batch, at_.pass + 1 == passes_ || i + 1 == count);
    at_.train_seconds = seconds_before + whole.seconds();
    const int64_t every = options_.checkpoint.every_n_train_steps;
    if (options_.checkpoint.enabled && every > 0 && at_.pass == 0 && at_.step % every == 0) save();
    if (writer_ && writer_->is_done()) finish_saving();
    if (stop_.after_pass()) break;
    times_.start();
  }
  outputs_->finish_progress();
}

void Fit::train_batch(const data::Batch& batch, bool is_last) {
  times_.begin(at_.step);
  const Stopwatch one;
  const auto loss = training_step_->pass(batch, at_.pass == 0, is_last, at_.step, times_);
  at_.epoch_loss.update(loss, batch.size());
  at_.interval_loss.update(loss, batch.size());
  at_.position += batch_;
  at_.samples += batch_;
  at_.pass = is_last ? 0 : at_.pass + 1;
  step_seconds_ += one.seconds();
  interval_samples_ += batch_;
  outputs_->advance(batch_, loss.item<double>());
  if (is_last) {
    ++at_.step;
    step_milliseconds_.add(std::exchange(step_seconds_, 0) * 1e3);
    if (at_.step % options_.trainer.log_every_n_steps == 0) log_training();
  }
  times_.finish();
}

void Fit::log_training() {
  const auto& optimization = training_step_->optimization();
  MetricValues values{
      {"epoch", static_cast<double>(at_.epoch)},
      {"train/loss", at_.interval_loss.value(group_, "train loss")},
      {"train/lr", optimization.learning_rate()},
      {"train/samples_per_second", static_cast<double>(interval_samples_) / interval_.seconds()}};
  const auto loss_scale = optimization.loss_scale();
  if (loss_scale) values.emplace_back("train/loss_scale", *loss_scale);
  outputs_->log(at_.step, values);
  at_.interval_loss.reset();
  interval_samples_ = 0;
  interval_.restart();
}

void Fit::end_epoch() {
  at_.train_loss = at_.epoch_loss.value(group_, "epoch loss");
  training_step_->agree();
  const int64_t epochs = options_.trainer.max_epochs;
  const bool is_last = at_.epoch + 1 == epochs || at_step_limit();
  if (is_last || (at_.epoch + 1) % options_.trainer.check_val_every_n_epoch == 0) validate();
  // Not so where max_steps has cut it short: a run with more steps goes on there.
  if (sampler_.steps_left({at_.epoch, at_.position}) == 0) {
    ++at_.epochs;
    ++at_.epoch;
    at_.position = 0;
    at_.epoch_loss.reset();
    at_.interval_loss.reset();
  }
  const int64_t every = options_.checkpoint.every_n_epochs;
  if (options_.checkpoint.enabled && every > 0 && (is_last || at_.epoch % every == 0)) save();
}

void Fit::validate() {
  const TraceSpan span(trace(), "compute", "validation");
  const at::NoGradGuard no_grad;
  const nn::Autocast autocast(training_step_->precision(), at::kCPU);
  task_.module().eval();
  data::Loader loader(validation_,
                      data::evaluation_batches(validation_.size(), batch_ / group_.size(), ranks_),
                      {}, loader_options(options_));
  Evaluation evaluation;
  while (const auto batch = loader.next()) {
    task_.validation_step(training_step_->cast(*batch), evaluation);
  }
  at_.validation_loss = evaluation.loss.value(group_, "validation loss");
  at_.validation_accuracy = evaluation.accuracy.value(group_, "validation accuracy");
  training_step_->judge(at_.validation_loss);
  outputs_->log(at_.step, {{"epoch", static_cast<double>(at_.epoch)},
                           {"train/epoch_loss", at_.train_loss},
                           {"validation/loss", at_.validation_loss},
                           {"validation/accuracy", at_.validation_accuracy}});
  if (is_main()) {
    log::info("epoch {}/{}: train loss {:.4f}, validation loss {:.4f}, accuracy {:.2f} %",
              at_.epoch + 1, options_.trainer.max_epochs, at_.train_loss, at_.validation_loss,
              100 * at_.validation_accuracy);
  }
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
  if (!checkpoint_.empty()) summary.checkpoint = (checkpoint_ / "model.safetensors").string();
  return summary;
}

}  // namespace troika::train
