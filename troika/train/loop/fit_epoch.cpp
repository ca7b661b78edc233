// Fit's training on the micro-batches of an epoch.
#include <algorithm>
#include <list>
#include <memory>
#include <optional>
#include <utility>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/parallel/swarm/swarm_member.h"
#include "troika/train/loop/fit.h"
#include "troika/train/run/quorum_run.h"

namespace troika::train {

// The micro-batches of an epoch that the engine has taken and is not done with.
struct Fit::TakenMicroBatches {
  std::unique_ptr<data::Loader> loader;
  // The first one is not in the list, so that a single batch allocates no list node.
  std::optional<data::Batch> first = {};
  std::list<data::Batch> others = {};
  std::optional<compat::LossWatch> watch = {};

  bool is_empty() const { return !first && others.empty(); }
  const data::Batch& front() const { return first ? *first : others.front(); }
  void pop() { first ? first.reset() : others.pop_front(); }
};

class Fit::LoadedMicroBatches : public MicroBatches {
 public:
  // `left`: micro-batches left in the epoch. A step resumed from a checkpoint may already have had
  // more micro-batches than this run's steps have; it then gets one more.
  LoadedMicroBatches(Fit& fit, TakenMicroBatches& taken, int64_t left)
      : MicroBatches(fit.epochs_.at().step,
                     fit.epochs_.at().micro_batch +
                         std::clamp<int64_t>(
                             fit.setup_.plan.micro_batches - fit.epochs_.at().micro_batch, 1, left),
                     fit.epochs_.at().micro_batch),
        fit_(fit),
        taken_(taken),
        left_(left) {}

  int64_t until_drain() const override { return std::max(fit_.until_drain_, count() - begin()); }

  const data::Batch* next() override {
    if (took_ > 0 && fit_.engine_->leaves_steps() && fit_.leaves_step()) return nullptr;
    auto loaded = fit_.own_order_ ? fit_.own_order_->next() : taken_.loader->next();
    TROIKA_CHECK(loaded, "the loader has the batches of the epoch");
    const auto& batch = taken_.is_empty() ? taken_.first.emplace(std::move(*loaded))
                                          : taken_.others.emplace_back(std::move(*loaded));
    ++took_;
    fit_.start_batch(batch);
    fit_.log_.watch_losses(taken_.watch);
    return &batch;
  }

  void done(const at::Tensor& loss) override {
    taken_.watch.reset();
    const bool is_of_swarm = fit_.setup_.swarm != nullptr;
    if (!is_of_swarm || ends_with_next_) ++done_;
    const bool ends_step = is_of_swarm ? ends_with_next_ : begin() + done_ == count();
    fit_.finish_batch(taken_.front(), loss, ends_step, done_ == left_);
    taken_.pop();
    const bool may_be_left = taken_.is_empty() && fit_.engine_->leaves_steps();
    if (ends_step || may_be_left) fit_.measured_.times().finish();
  }

  void end_with_next() override { ends_with_next_ = true; }

  void end_without() override {
    ++done_;
    fit_.finish_step_of_others(done_ == left_);
    fit_.measured_.times().finish();
  }

  int64_t done() const { return done_; }

 private:
  Fit& fit_;
  TakenMicroBatches& taken_;
  const int64_t left_;
  int64_t took_ = 0, done_ = 0;
  bool ends_with_next_ = false;
};

bool Fit::train_epoch() {
  const observe::Profile::Span span(measured_.profile(), "run_training_epoch");
  auto& at = epochs_.at();
  int64_t count = epochs_.micro_batches_to_train();
  if (std::exchange(at.validating, 0) != 0 && count > 0 && !repeat_validation()) return true;
  const auto device = engine_->placement().device.type();
  TakenMicroBatches taken;
  if (!own_order_) taken.loader.reset(new data::Loader(epochs_.load_next(count, device)));
  // Before the hooks: a replica that joins continues from the state at this point, and calls them,
  // too.
  if (setup_.quorum && count > 0 && !begin_quorum_step(taken, count)) return true;
  log_.start_progress(count);
  setup_.task.module().train();
  if (at.position == 0) hooks_.call("on_train_epoch_start", &Hooks::on_train_epoch_start);
  measured_.clock().start_training(at.train_seconds);
  while (count > 0) {
    measured_.times().start();
    const int64_t begin = at.micro_batch;
    if (until_drain_ == 0) until_drain_ = next_drain(count);
    const int64_t trained = train_step(taken, count);
    if (setup_.swarm && setup_.swarm->is_behind() && take_swarm_state()) {
      log_.finish_progress();
      return false;
    }
    count -= trained;
    until_drain_ = std::max<int64_t>(0, until_drain_ - trained);
    if (until_drain_ > 0) {
      drain_if_asked();
      continue;
    }
    if (is_stopping()) break;  // a stop was asked for between micro-batches, or before the drain
    if (count > 0 && validator_.is_due_within_epoch(begin + trained)) {
      engine_->synchronize_replicas();
      if (!validator_.validate()) break;
      measured_.clock().start_training(at.train_seconds);
    }
    checkpoints_.save_asked();
    checkpoints_.finish_if_written();
    if (is_asked_to_stop() || (at.micro_batch == 0 && context_.is_done())) break;
    if (setup_.quorum && count > 0 && !begin_quorum_step(taken, count)) break;
  }
  log_.finish_progress();
  return true;
}

bool Fit::begin_quorum_step(TakenMicroBatches& taken, int64_t left) {
  const auto share = setup_.quorum->begin_step(
      epochs_.at().step,
      [this](const auto& folder) { return checkpoints_.save_for_replica(folder); },
      [this] { return stop_.ask_now(); });
  if (!share) return false;
  if (!epochs_.take_share(*share)) return true;
  const auto device = engine_->placement().device.type();
  taken.loader.reset(new data::Loader(epochs_.load_next(left, device)));
  return true;
}

void Fit::leave_quorum() {
  auto& quorum = *setup_.quorum;
  const bool has_saved = quorum.writes();
  if (!is_stopping() && quorum.must_save([this] { return stop_.ask_now(); }) && !has_saved) {
    checkpoints_.save_left_out();
  }
  quorum.leave(/*is_finished=*/!is_stopping());
}

bool Fit::repeat_validation() {
  if (epochs_.limits().validation_batches == 0) return true;
  engine_->synchronize_replicas();
  if (!validator_.validate()) return false;
  checkpoints_.save_asked();
  return !context_.is_done();
}

int64_t Fit::next_drain(int64_t left) const {
  if (engine_->most_ahead() == 0) return 0;
  const int64_t micro_batches = setup_.plan.micro_batches;
  const int64_t validation = validator_.micro_batches_until_due();
  return std::min(left, (validation + micro_batches - 1) / micro_batches * micro_batches);
}

void Fit::drain_if_asked() {
  const bool is_asked = is_asked_to_stop() || context_.is_done() || checkpoints_.has_requests();
  if (is_asked) until_drain_ = std::min(until_drain_, engine_->most_ahead());
}

int64_t Fit::train_step(TakenMicroBatches& taken, int64_t left) {
  LoadedMicroBatches batches(*this, taken, left);
  const auto result = engine_->step(batches);
  // Its samples are lost, as those of a peer that leaves are.
  if (setup_.swarm && !result.is_complete) epochs_.at().micro_batch = 0;
  measured_.add_peak(result.peak_tensor_bytes);
  if (!result.why_last.empty()) context_.ask_to_stop(result.why_last);
  return batches.done();
}

bool Fit::leaves_step() {
  if (checkpoints_.has_requests()) return true;
  checkpoints_.finish_if_written();
  if (is_asked_to_stop()) return true;
  measured_.times().start();
  return false;
}

bool Fit::is_asked_to_stop() {
  const bool is_asked = stop_.after_micro_batch(measured_.clock().run_seconds());
  context_.seconds = stop_.seconds();
  return is_asked;
}

void Fit::start_batch(const data::Batch& batch) {
  measured_.times().begin(epochs_.at().step);
  measured_.clock().start_batch();
  log_.start_batch(batch);
  hooks_.call("on_train_batch_start", &Hooks::on_train_batch_start, batch);
}

void Fit::finish_step_of_others(bool is_last_of_epoch) {
  epochs_.advance(/*ends_step=*/true);
  log_.advance();
  end_step();
  context_.validation.follows =
      is_last_of_epoch ? validator_.is_due_after_epoch() : validator_.is_due_within_epoch(1);
  epochs_.at().train_seconds = measured_.clock().train_seconds();
}

void Fit::end_step() {
  auto& at = epochs_.at();
  at.rows = 0;
  if (at.step % setup_.options.trainer.log_every_n_steps == 0) log_.log_steps();
}

void Fit::finish_batch(const data::Batch& batch, const at::Tensor& loss, bool is_last,
                       bool is_last_of_epoch) {
  auto& at = epochs_.at();
  auto& clock = measured_.clock();
  // In a swarm, a step counts as one, whatever this peer's part of it was.
  const int64_t micro_batches = setup_.swarm ? 1 : at.micro_batch + 1;
  log_.add_loss(loss, batch);
  epochs_.advance(is_last);
  clock.end_batch(setup_.swarm ? batch.size() : epochs_.trained_samples());
  if (is_last || !setup_.swarm) log_.advance();
  if (is_last) {
    clock.end_step();
    end_step();
  }
  context_.validation.follows = is_last_of_epoch ? validator_.is_due_after_epoch()
                                                 : validator_.is_due_within_epoch(micro_batches);
  hooks_.call("on_train_batch_end", &Hooks::on_train_batch_end, batch, loss);
  at.train_seconds = clock.train_seconds();
}

}  // namespace troika::train
