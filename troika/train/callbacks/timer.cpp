#include "troika/train/callbacks/timer.h"

#include "troika/base/log.h"
#include "troika/checkpoint/reader.h"
#include "troika/compat/torch.h"
#include "troika/train/options/limits.h"
#include "troika/train/run/fit_context.h"

namespace troika::train {

Timer::Timer(const std::string& duration, const TimerOptions& options)
    : options_(options), duration_(seconds_of("trainer.max_time", duration)) {}

void Timer::look(FitContext& context, bool may_stop) {
  now_ = context.seconds;
  training_ = context.at.train_seconds;
  if (may_stop && now_ > duration_) context.ask_to_stop("trainer.max_time is over");
}

// Stops a resumed run whose time is over before it makes a step.
void Timer::on_fit_start(FitContext& context) {
  look(context, true);
}

void Timer::on_train_batch_end(FitContext& context, const data::Batch&, const at::Tensor&) {
  look(context, options_.interval == "step");
}

void Timer::on_train_epoch_end(FitContext& context) {
  look(context, true);
}

void Timer::on_validation_start(FitContext&) {
  validating_.restart();
}

void Timer::on_validation_end(FitContext&) {
  validation_ += validating_.seconds();
}

void Timer::on_fit_end(FitContext& context) {
  look(context, false);
  if (!options_.verbose || context.group.rank() != 0) return;
  log::info("{:.1f} s of training, {:.1f} s of validation", training_, validation_);
}

checkpoint::NamedTensors Timer::state() const {
  return {{"validation_seconds", at::scalar_tensor(validation_, at::kDouble)}};
}

void Timer::load_state(const checkpoint::CheckpointReader& saved, const std::string& prefix) {
  validation_ = saved.read(prefix + "validation_seconds").item<double>();
}

}  // namespace troika::train
