// Fit's training on the micro-batches of an epoch.
#include <algorithm>
#include <optional>
#include <utility>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/train/loop/finite_loss.h"
#include "troika/train/loop/fit.h"
#include "troika/train/options/limits.h"

namespace troika::train {

namespace {

// The maximum number of losses kept on a GPU. A NaN loss therefore ends the run at most this number
// of micro-batches later.
constexpr size_t kMostLosses = 100;

}  // namespace

class Fit::LoadedMicroBatches : public MicroBatches {
 public:
  // `left`: micro-batches left in the epoch. A step resumed from a checkpoint may already have had
  // more micro-batches than this run's steps have; it then gets one more.
  LoadedMicroBatches(Fit& fit, data::Loader& loader, int64_t left)
      : MicroBatches(
            fit.at_.step,
            fit.at_.micro_batch +
                std::clamp<int64_t>(fit.plan_.micro_batches - fit.at_.micro_batch, 1, left),
            fit.at_.micro_batch),
        fit_(fit),
        loader_(loader),
        left_(left) {}

  const data::Batch* next() override {
    if (taken_ > 0 && fit_.leaves_step()) return nullptr;
    batch_ = loader_.next();
    TROIKA_CHECK(batch_, "the loader has the batches of the epoch");
    ++taken_;
    fit_.start_batch(*batch_);
    fit_.warnings_->watch_losses(watch_);
    return &*batch_;
  }

  void done(const at::Tensor& loss) override {
    watch_.reset();
    fit_.finish_batch(*batch_, loss, begin() + taken_ == count(), taken_ == left_);
  }

  int64_t taken() const { return taken_; }

 private:
  Fit& fit_;
  data::Loader& loader_;
  const int64_t left_;
  int64_t taken_ = 0;
  std::optional<data::Batch> batch_;
  std::optional<compat::LossWatch> watch_;
};

void Fit::train_epoch() {
  const observe::Profile::Span span(profile(), "run_training_epoch");
  const auto from = sampler_state();
  int64_t count = passes_left();
  if (options_.trainer.max_steps >= 0) {
    const int64_t steps = options_.trainer.max_steps - at_.step;
    count = std::min(count, std::max<int64_t>(steps * plan_.micro_batches - at_.micro_batch, 1));
  }
  // The run was stopped in a validation within the epoch.
  if (std::exchange(at_.validating, 0) != 0 && count > 0 && limits_.validation_batches > 0) {
    engine_->synchronize_replicas();
    if (!validate()) return;
    save_asked();
    if (context_.is_done()) return;
  }
  auto batches = sampler_.batches(from);
  batches.resize(static_cast<size_t>(count));
  data::Loader loader(training_, std::move(batches), sampler_.augmentation_seed(from.epoch),
                      loader_options(options_));
  const int64_t done = at_.position / batch_;
  outputs_->start_progress("epoch " + epoch_text(), done + count, done);
  task_.module().train();
  if (at_.position == 0) hooks_.call("on_train_epoch_start", &Hooks::on_train_epoch_start);
  clock_.start_training(at_.train_seconds);
  while (count > 0) {
    times_.start();
    const int64_t begin = at_.micro_batch;
    const int64_t trained = train_step(loader, count);
    count -= trained;
    if (is_stopping()) break;  // a stop was asked for between micro-batches
    if (count > 0 && is_validation_due(begin + trained)) {
      engine_->synchronize_replicas();
      if (!validate()) break;
      clock_.start_training(at_.train_seconds);
    }
    save_asked();
    if (writer_ && writer_->is_done()) finish_saving();
    if (is_asked_to_stop() || (at_.micro_batch == 0 && context_.is_done())) break;
  }
  outputs_->finish_progress();
}

int64_t Fit::train_step(data::Loader& loader, int64_t left) {
  LoadedMicroBatches batches(*this, loader, left);
  const auto result = engine_->step(batches);
  peak_tensor_bytes_ = std::max(peak_tensor_bytes_, result.peak_tensor_bytes);
  return batches.taken();
}

bool Fit::leaves_step() {
  if (context_.checkpoint_asked || !asked_.empty()) return true;
  if (writer_ && writer_->is_done()) finish_saving();
  if (is_asked_to_stop()) return true;
  times_.start();
  return false;
}

bool Fit::is_asked_to_stop() {
  const bool is_asked = stop_.after_micro_batch(clock_.run_seconds());
  context_.seconds = stop_.seconds();
  return is_asked;
}

void Fit::take_loss(const StepLoss& loss, const data::Batch* batch) {
  if (ends_run(loss.loss, context_)) {
    refuse_loss(
        loss, batch ? *batch : training_.load(loss.samples, sampler_.augmentation_seed(loss.epoch)),
        context_);
  }
  log_loss(loss);
  outputs_->add_loss(loss.loss);
}

void Fit::log_loss(const StepLoss& loss) {
  log_.log(observe::kTrainLoss, loss.loss, {.sync_dist = true, .batch_size = loss.size});
  log_.log(observe::kEpochLoss, loss.loss,
           {.on_step = false, .on_epoch = true, .sync_dist = true, .batch_size = loss.size});
}

void Fit::take_losses() {
  const auto losses = losses_.read();
  for (const auto& loss : losses) take_loss(loss, nullptr);
  // The device has finished all queued work.
  if (!losses.empty()) at_.train_seconds = clock_.train_seconds();
}

void Fit::start_batch(const data::Batch& batch) {
  times_.begin(at_.step);
  clock_.start_batch();
  log_.start_batch(batch.size());
  task_.log_to(&log_, batch.size());
  hooks_.call("on_train_batch_start", &Hooks::on_train_batch_start, batch);
}

void Fit::finish_batch(const data::Batch& batch, const at::Tensor& loss, bool is_last,
                       bool is_last_of_epoch) {
  const int64_t passes = at_.micro_batch + 1;
  if (loss.is_cpu()) {
    take_loss({.loss = number_of(loss), .step = at_.step, .size = batch.size()}, &batch);
  } else {
    losses_.add(loss, at_.step, sampler_state().epoch, batch);
    if (losses_.count() == kMostLosses) take_losses();
  }
  at_.position += batch_;
  at_.samples += batch_;
  at_.micro_batch = is_last ? 0 : at_.micro_batch + 1;
  if (is_last) ++at_.step;
  clock_.end_batch(batch_);
  outputs_->advance(batch_);
  if (is_last) {
    at_.rows = 0;
    clock_.end_step();
    if (at_.step % options_.trainer.log_every_n_steps == 0) log_training();
  }
  context_.validation_follows =
      is_last_of_epoch ? validates_after_epoch() : is_validation_due(passes);
  hooks_.call("on_train_batch_end", &Hooks::on_train_batch_end, batch, loss);
  times_.finish();
  at_.train_seconds = clock_.train_seconds();
}

}  // namespace troika::train
