#include "troika/train/loop/train_log.h"

#include <fmt/format.h>

#include "troika/base/log.h"
#include "troika/base/text.h"
#include "troika/checkpoint/index.h"
#include "troika/compat/torch.h"
#include "troika/layout/plan.h"
#include "troika/train/engine/optimization.h"
#include "troika/train/engine/pipeline_plan.h"
#include "troika/train/loop/finite_loss.h"
#include "troika/train/run/course_names.h"

namespace troika::train {

namespace {

// The maximum number of losses kept on a GPU. A NaN loss therefore ends the run at most this number
// of micro-batches later.
constexpr size_t kMostLosses = 100;

}  // namespace

TrainLog::TrainLog(FitContext& context, Epochs& epochs, FitClock& clock)
    : context_(context),
      epochs_(epochs),
      clock_(clock),
      log_(outputs_group(context.groups), observe::MetricLog::Phase::training,
           computes_outputs(*context.training.plan, context.group.rank())) {
  context_.log = &log_;
}

void TrainLog::open(const std::string& id) {
  const auto& at = epochs_.at();
  // Rows of another run are dropped.
  const bool goes_on = is_main() && id == id_of_logged_run(context_.folder);
  outputs_.emplace(is_main(), context_.folder, context_.options, id,
                   goes_on ? std::optional(observe::LogPosition{at.step, at.rows}) : std::nullopt);
}

void TrainLog::begin_warnings() {
  warnings_.emplace(is_main());
}

void TrainLog::resume() {
  context_.log = &log_;
  context_.task.log_to(&log_, epochs_.global_batch() / context_.groups.mesh().sample_shares());
}

void TrainLog::start_batch(const data::Batch& batch) {
  log_.start_batch(batch.size());
  context_.task.log_to(&log_, batch.size());
}

void TrainLog::add_loss(const at::Tensor& loss, const data::Batch& batch) {
  const int64_t step = epochs_.at().step;
  if (loss.is_cpu()) {
    take({.loss = number_of(loss), .step = step, .size = batch.size()}, &batch);
    return;
  }
  losses_.add(loss, step, epochs_.data_epoch(), batch);
  if (losses_.count() == kMostLosses) read_losses();
}

void TrainLog::take(const StepLoss& loss, const data::Batch* batch) {
  if (ends_run(loss.loss, context_)) {
    refuse_loss(loss, batch ? *batch : epochs_.load_again(loss), context_);
  }
  log_loss(loss);
  outputs_->add_loss(loss.loss);
}

void TrainLog::log_loss(const StepLoss& loss) {
  log_.log(observe::kTrainLoss, loss.loss, {.sync_dist = true, .batch_size = loss.size});
  log_.log(observe::kEpochLoss, loss.loss,
           {.on_step = false, .on_epoch = true, .sync_dist = true, .batch_size = loss.size});
}

void TrainLog::read_losses() {
  const auto losses = losses_.read();
  for (const auto& loss : losses) take(loss, nullptr);
  // The device has finished all queued work.
  if (!losses.empty()) epochs_.at().train_seconds = clock_.train_seconds();
}

void TrainLog::read_losses_after_failure() {
  for (const auto& loss : losses_.read()) log_loss(loss);
}

void TrainLog::log_row(const observe::MetricValues& common, const observe::LoggedRow& row,
                       const observe::MetricValues& own) {
  auto& at = epochs_.at();
  context_.row = row.common;
  context_.row.insert(context_.row.end(), common.begin(), common.end());
  for (const auto& [name, value] : context_.row) at.metrics[name] = value;
  observe::MetricValues values{{"epoch", static_cast<double>(at.epoch)}};
  for (const auto* more : {&row.values, &common, &own}) {
    values.insert(values.end(), more->begin(), more->end());
  }
  outputs_->log(at.step, values);
  ++at.rows;
  outputs_->show(row.prog_bar);
}

void TrainLog::log_steps() {
  read_losses();
  const auto& optimization = *context_.training.optimization;
  observe::MetricValues common{{"train/lr", optimization.learning_rate()}};
  const auto loss_scale = optimization.loss_scale();
  if (loss_scale) common.emplace_back("train/loss_scale", *loss_scale);
  log_row(common, log_.end_interval(), {{"train/samples_per_second", clock_.samples_per_second()}});
  clock_.start_interval();
}

void TrainLog::log_epoch() {
  // If max_steps has cut the epoch short, the log is kept: a run with more steps resumes the epoch.
  const bool goes_on = epochs_.micro_batches_left() > 0;
  const auto before = goes_on ? log_.state() : at::Tensor();
  log_row(context_.training.store->take_statistics(), log_.end_epoch());
  if (goes_on) {
    log_.clear();
    log_.add_state(before);
  }
  auto& at = epochs_.at();
  // A peer of a swarm that pauses has no loss of its own.
  const auto loss = at.metrics.find(observe::kEpochLoss);
  if (loss != at.metrics.end()) at.train_loss = loss->second;
}

void TrainLog::print_epoch() const {
  if (!is_main()) return;
  const auto& at = epochs_.at();
  auto text =
      fmt::format("epoch {}: train loss {}", epochs_.number(), human_number(at.train_loss, 4));
  if (at.metrics.contains(observe::kValidationLoss)) {
    text += fmt::format(", validation loss {}", human_number(at.validation_loss, 4));
  }
  if (at.metrics.contains(observe::kValidationAccuracy)) {
    text += fmt::format(", accuracy {:.2f} %", 100 * at.validation_accuracy);
  }
  log::info("{}", text);
}

void TrainLog::start_progress(int64_t count) {
  const int64_t done = epochs_.micro_batches_done();
  outputs_->start_progress("epoch " + epochs_.number(), done + count, done);
}

void TrainLog::clear() {
  losses_.read();
  log_.clear();
}

void TrainLog::load_state(const checkpoint::CheckpointReader& saved) {
  const auto& plan = *context_.training.plan;
  // With another schedule or cut, the last stage may be on another rank.
  const bool is_alike =
      !is_pipeline(plan) || checkpoint::read_index(saved.path()).info.plan == plan.text();
  if (is_alike && saved.mesh().has_places_of(plan.mesh)) {
    log_.add_state(saved.read(kLog));
    return;
  }
  // The first rank that computes outputs loads the numbers of all ranks.
  if (!computes_outputs(plan, context_.group.rank())) return;
  if (context_.groups.data().rank() > 0) return;
  const auto mesh = saved.mesh();
  for (int rank = 0; rank < saved.ranks(); ++rank) {
    // The ranks of a tensor or context axis have had the same samples.
    const auto place = mesh.coordinates(rank);
    if (place[layout::Axis::tensor] > 0 || place[layout::Axis::context] > 0) continue;
    log_.add_state(saved.of(rank).read(kLog));
  }
}

}  // namespace troika::train
