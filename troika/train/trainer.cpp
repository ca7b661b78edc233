#include "troika/train/trainer.h"

#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/base/log.h"
#include "troika/base/random.h"
#include "troika/comm/timeline.h"
#include "troika/compat/torch.h"
#include "troika/data/loader.h"
#include "troika/nn/precision.h"
#include "troika/optim/plateau.h"
#include "troika/optim/schedule.h"
#include "troika/parallel/sync_batch_norm.h"
#include "troika/train/checkpoint.h"
#include "troika/train/logger.h"
#include "troika/train/optimization.h"
#include "troika/train/progress.h"
#include "troika/train/step_times.h"
#include "troika/train/strategy.h"

namespace troika::train {

namespace {

// What is known of a run before it began.
RunSummary bare_summary(const TrainOptions& options, const comm::Group& group,
                        const std::filesystem::path& folder, const std::string& status) {
  RunSummary summary;
  summary.name = options.run.name;
  summary.status = status;
  summary.world_size = group.size();
  summary.torch_version = compat::torch_version();
  summary.run_folder = folder.string();
  return summary;
}

// One call of fit(): everything that lives as long as the run.
class Fit {
 public:
  Fit(const TrainOptions& options, comm::Group group, const std::filesystem::path& folder,
      Task& task, const data::Dataset& training, const data::Dataset& validation)
      : options_(options),
        group_(std::move(group)),
        folder_(folder),
        task_(task),
        training_(training),
        validation_(validation),
        ranks_{group_.rank(), group_.size()},
        batch_(global_batch(options, group_.size())),
        accumulation_(accumulation(options)),
        sampler_({.size = training.size(),
                  .global_batch = batch_,
                  .seed = static_cast<uint64_t>(options.run.seed),
                  .ranks = ranks_}),
        precision_(nn::parse_precision(options.trainer.precision)) {
    nn::require_supported(precision_, at::kCPU);
    total_steps_ = steps_of(sampler_.steps_left({})) * options.trainer.max_epochs;
    if (options.trainer.max_steps >= 0) {
      total_steps_ = std::min(total_steps_, options.trainer.max_steps);
    }
    // A sum of passes already is larger by their number.
    const bool is_mean = accumulation_.factor < 1;
    schedule_ = optim::make_schedule(
        options.schedule,
        {.steps = total_steps_, .global_batch = is_mean ? batch_ * accumulation_.passes : batch_});
    if (options.schedule.name == "plateau") plateau_.emplace(options.schedule);
    task_.module().to(precision_.parameters);
    task_.recompute(options.trainer.recompute);
    torch::manual_seed(
        mix(static_cast<uint64_t>(options.run.seed), static_cast<uint64_t>(group_.rank()) + 1));
    if (options.trainer.sync_batchnorm) parallel::convert_batch_norm(task_.module(), group_);
    if (options.trainer.trace) timeline_.emplace(group_);
    times_ = StepTimes(trace());
    exchange_ = make_exchange(options, task_, group_, trace());
    optimization_.emplace(precision_, task_.module(), *exchange_, options.optimizer);
    if (is_main()) open_outputs();
  }

  ~Fit() {
    // The module may outlive the ranks' being together.
    if (options_.trainer.sync_batchnorm) parallel::localize_batch_norm(task_.module());
  }
  Fit(const Fit&) = delete;
  Fit& operator=(const Fit&) = delete;

  void run() {
    const int64_t epochs = options_.trainer.max_epochs;
    for (int64_t epoch = 0; epoch < epochs && step_ < total_steps_; ++epoch) {
      train_epoch(epoch);
      exchange_->agree();
      const bool last = epoch + 1 == epochs || step_ == total_steps_;
      if (last || (epoch + 1) % options_.trainer.check_val_every_n_epoch == 0) validate(epoch);
      if (is_main()) save(epoch);
    }
    if (timeline_) write_timeline();
  }

  RunSummary summary(const std::string& status) const {
    RunSummary summary = bare_summary(options_, group_, folder_, status);
    summary.steps = step_;
    summary.samples = samples_;
    summary.epochs = epochs_;
    summary.train_loss = train_loss_;
    summary.validation_loss = validation_loss_;
    summary.validation_accuracy = validation_accuracy_;
    summary.samples_per_second = static_cast<double>(summary.samples) / train_seconds_;
    summary.median_step_milliseconds = step_milliseconds_.value();
    summary.seconds = since_start_.seconds();
    summary.checkpoint = checkpoint_.string();
    return summary;
  }

  // Called by all ranks.
  std::vector<PhaseTime> phase_times() const { return times_.medians(group_); }

 private:
  bool is_main() const { return group_.rank() == 0; }

  Trace* trace() { return timeline_ ? &timeline_->trace() : nullptr; }

  void write_timeline() {
    timeline_->write(folder_ / "trace.json");
    if (!is_main()) return;
    log::info("timeline of the first {} steps: {} (for ui.perfetto.dev, or troika report {})",
              std::min(step_, trace()->steps()), (folder_ / "trace.json").string(),
              folder_.string());
  }

  void open_outputs() {
    loggers_ = open_loggers(options_.trainer.loggers, folder_, options_.run.name);
    if (options_.trainer.enable_progress_bar) progress_.emplace();
  }

  data::Batch cast(data::Batch batch) const {
    if (at::isFloatingType(batch.inputs.scalar_type())) {
      batch.inputs = batch.inputs.to(precision_.parameters);
    }
    return batch;
  }

  data::LoaderOptions loader_options() const {
    return {.workers = static_cast<int>(options_.data.workers),
            .prefetch = static_cast<int>(options_.data.prefetch)};
  }

  // Optimizer steps that this many batches make; the last may be of fewer passes.
  int64_t steps_of(int64_t batches) const {
    return (batches + accumulation_.passes - 1) / accumulation_.passes;
  }

  void train_epoch(int64_t epoch) {
    const int64_t count =
        std::min(sampler_.steps_left({epoch, 0}), (total_steps_ - step_) * accumulation_.passes);
    auto batches = sampler_.batches({epoch, 0});
    batches.resize(static_cast<size_t>(count));
    data::Loader loader(training_, std::move(batches), sampler_.augmentation_seed(epoch),
                        loader_options());
    if (progress_) {
      progress_->start(fmt::format("epoch {}/{}", epoch + 1, options_.trainer.max_epochs), count);
    }
    task_.module().train();
    Mean epoch_loss;
    Mean interval_loss;
    Stopwatch interval;
    Stopwatch whole;
    int64_t interval_samples = 0;
    double step_seconds = 0;
    times_.start();
    for (int64_t i = 0; const auto batch = loader.next(); ++i) {
      times_.begin(step_);
      const Stopwatch one;
      const int64_t pass = i % accumulation_.passes;
      const bool is_last = pass + 1 == accumulation_.passes || i + 1 == count;
      const auto loss = train_pass(cast(*batch), pass == 0, is_last);
      epoch_loss.update(loss, batch->size());
      interval_loss.update(loss, batch->size());
      step_seconds += one.seconds();
      samples_ += batch_;
      interval_samples += batch_;
      if (progress_) progress_->advance(1, batch_, loss.item<double>());
      if (is_last) step_milliseconds_.add(std::exchange(step_seconds, 0) * 1e3);
      if (is_last && step_ % options_.trainer.log_every_n_steps == 0) {
        log_training(epoch, interval_loss.value(group_, "train loss"),
                     static_cast<double>(interval_samples) / interval.seconds());
        interval_loss.reset();
        interval_samples = 0;
        interval.restart();
      }
      times_.finish();
      times_.start();
    }
    train_seconds_ += whole.seconds();
    if (progress_) progress_->finish();
    train_loss_ = epoch_loss.value(group_, "epoch loss");
    if (count == sampler_.steps_left({epoch, 0})) ++epochs_;
  }

  void log_training(int64_t epoch, double loss, double samples_per_second) {
    MetricValues values{{"epoch", static_cast<double>(epoch)},
                        {"train/loss", loss},
                        {"train/lr", optimization_->learning_rate()},
                        {"train/samples_per_second", samples_per_second}};
    const auto loss_scale = optimization_->loss_scale();
    if (loss_scale) values.emplace_back("train/loss_scale", *loss_scale);
    log(values);
  }

  at::Tensor training_loss(const data::Batch& batch) {
    const nn::Autocast autocast(precision_, at::kCPU);
    return task_.training_step(batch);
  }

  // One of the backward passes of a step, with the step after its last.
  at::Tensor train_pass(const data::Batch& batch, bool is_first, bool is_last) {
    if (is_first) task_.module().zero_grad(/*set_to_none=*/true);
    std::optional<parallel::Exchange::NoSync> no_sync;
    if (!is_last) no_sync.emplace(*exchange_);
    const at::Tensor loss = training_loss(batch);
    times_.end(Phase::forward);
    optimization_->scaled(accumulation_.factor == 1 ? loss : loss * accumulation_.factor)
        .backward();
    times_.end(Phase::backward);
    if (is_last) optimizer_step();
    return loss.detach();
  }

  void optimizer_step() {
    exchange_->finish_backward();
    times_.end(Phase::exposed_communication);
    // A skipped step does not move the schedule on.
    optimization_->set_learning_rate(options_.optimizer.lr *
                                     schedule_(step_ - optimization_->skipped()) *
                                     (plateau_ ? plateau_->factor() : 1.0));
    optimization_->clip(*exchange_, options_.trainer.gradient_clip_val,
                        options_.trainer.gradient_clip_algorithm);
    optimization_->step(*exchange_);
    times_.end(Phase::optimizer);
    ++step_;
  }

  void validate(int64_t epoch) {
    const TraceSpan span(trace(), "compute", "validation");
    const at::NoGradGuard no_grad;
    const nn::Autocast autocast(precision_, at::kCPU);
    task_.module().eval();
    data::Loader loader(
        validation_, data::evaluation_batches(validation_.size(), batch_ / group_.size(), ranks_),
        {}, loader_options());
    Evaluation evaluation;
    while (const auto batch = loader.next()) task_.validation_step(cast(*batch), evaluation);
    validation_loss_ = evaluation.loss.value(group_, "validation loss");
    if (plateau_) plateau_->judge(validation_loss_);
    validation_accuracy_ = evaluation.accuracy.value(group_, "validation accuracy");
    log({{"epoch", static_cast<double>(epoch)},
         {"train/epoch_loss", train_loss_},
         {"validation/loss", validation_loss_},
         {"validation/accuracy", validation_accuracy_}});
    if (is_main()) {
      log::info("epoch {}/{}: train loss {:.4f}, validation loss {:.4f}, accuracy {:.2f} %",
                epoch + 1, options_.trainer.max_epochs, train_loss_, validation_loss_,
                100 * validation_accuracy_);
    }
  }

  void save(int64_t epoch) {
    const TraceSpan span(trace(), "compute", "checkpoint");
    checkpoint_ =
        save_checkpoint(folder_ / "checkpoints", task_.module(), options_,
                        {.epoch = epoch + 1, .step = step_, .masters = optimization_->masters()});
    for (const auto& logger : loggers_) logger->flush();
  }

  void log(const MetricValues& values) {
    for (const auto& logger : loggers_) logger->log(step_, values);
  }

  const TrainOptions& options_;
  comm::Group group_;
  const std::filesystem::path folder_;
  Task& task_;
  const data::Dataset& training_;
  const data::Dataset& validation_;
  const data::RankOf ranks_;
  const int64_t batch_;  // samples a pass over all ranks
  const Accumulation accumulation_;
  const data::Sampler sampler_;
  const nn::Precision precision_;
  int64_t total_steps_ = 0;
  optim::Schedule schedule_;
  std::optional<optim::ReduceOnPlateau> plateau_;
  std::optional<comm::Timeline> timeline_;
  StepTimes times_;
  std::unique_ptr<parallel::Exchange> exchange_;
  std::optional<Optimization> optimization_;

  std::vector<std::unique_ptr<Logger>> loggers_;  // rank 0's
  std::optional<ProgressBar> progress_;
  const Stopwatch since_start_;
  double train_seconds_ = 0;
  Median step_milliseconds_;
  int64_t step_ = 0;
  int64_t samples_ = 0;
  int64_t epochs_ = 0;
  double train_loss_ = NAN;
  double validation_loss_ = NAN;
  double validation_accuracy_ = NAN;
  std::filesystem::path checkpoint_;
};

// What went wrong before matters more than that this file cannot be written.
void try_to_write(const std::filesystem::path& file, const RunSummary& summary) {
  try {
    write_summary(file, summary);
  } catch (const std::exception& problem) {
    log::error("no summary of the failed run: {}", problem.what());
  }
}

}  // namespace

int64_t global_batch(const TrainOptions& options, int ranks) {
  const int64_t whole = options.data.global_batch_size;
  return whole > 0 ? whole : options.data.batch_size * ranks;
}

Trainer::Trainer(TrainOptions options, comm::Group group)
    : options_(std::move(options)), group_(std::move(group)) {}

std::filesystem::path Trainer::folder() const {
  return std::filesystem::path(options_.run.folder) / options_.run.name;
}

RunSummary Trainer::fit(Task& task, const data::Dataset& training,
                        const data::Dataset& validation) {
  const bool is_main = group_.rank() == 0;
  const auto summary_file = folder() / "summary.json";
  std::optional<Fit> fit;
  try {
    if (is_main) {
      // An earlier run of this name must not speak for this one.
      for (const auto& file : {summary_file, folder() / "trace.json", folder() / "report.html"}) {
        std::filesystem::remove(file);
      }
      write_file_atomically(folder() / "config.toml", make_table(options_).to_toml());
    }
    fit.emplace(options_, group_, folder(), task, training, validation);
    fit->run();
    RunSummary summary = fit->summary("finished");
    summary.phase_milliseconds = fit->phase_times();
    const auto peaks = at::empty({group_.size(), 1}, at::kLong);
    group_.all_gather(peaks, at::full({1}, peak_resident_bytes(), at::kLong), {},
                      {.label = "peak memory"});
    for (int r = 0; r < group_.size(); ++r) {
      summary.peak_resident_bytes.push_back(peaks[r].item<int64_t>());
    }
    if (is_main) write_summary(summary_file, summary);
    return summary;
  } catch (...) {
    if (is_main) {
      try_to_write(summary_file, fit ? fit->summary("failed")
                                     : bare_summary(options_, group_, folder(), "failed"));
    }
    throw;
  }
}

}  // namespace troika::train
