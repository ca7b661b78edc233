// Hooks, log() in a task's steps, and early stopping.
#include "troika/train/run/callback.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>

#include "tests/support/errors.h"
#include "tests/train/numbers.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/comm/local/local.h"
#include "troika/compat/torch.h"
#include "troika/train/run/fit_context.h"
#include "troika/train/task/replicated_task.h"
#include "troika/train/trainer.h"

namespace troika::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::shared_ptr<torch::nn::LinearImpl> linear() {
  const auto module = std::make_shared<torch::nn::LinearImpl>(2, 2);
  const at::NoGradGuard no_grad;
  for (auto& parameter : module->parameters()) parameter.fill_(0.1);
  return module;
}

// Records the called hooks and the position of the run.
template <typename Base>
class Noting : public Base {
 public:
  template <typename... Arguments>
  explicit Noting(std::string who, std::vector<std::string>& notes, Arguments&&... arguments)
      : Base(std::forward<Arguments>(arguments)...), who_(std::move(who)), notes_(notes) {}

  void on_fit_start(FitContext& c) override { note("fit_start", c); }
  void on_train_start(FitContext& c) override { note("train_start", c); }
  void on_train_end(FitContext& c) override { note("train_end", c); }
  void on_fit_end(FitContext& c) override { note("fit_end", c); }
  void on_train_epoch_start(FitContext& c) override { note("train_epoch_start", c); }
  void on_train_epoch_end(FitContext& c) override { note("train_epoch_end", c); }
  void on_train_batch_start(FitContext& c, const data::Batch&) override {
    note("train_batch_start", c);
  }
  void on_train_batch_end(FitContext& c, const data::Batch&, const at::Tensor&) override {
    note("train_batch_end", c);
  }
  void on_before_optimizer_step(FitContext& c) override { note("before_optimizer_step", c); }
  void on_validation_start(FitContext& c) override { note("validation_start", c); }
  void on_validation_epoch_start(FitContext& c) override { note("validation_epoch_start", c); }
  void on_validation_batch_start(FitContext& c, const data::Batch&) override {
    note("validation_batch_start", c);
  }
  void on_validation_batch_end(FitContext& c, const data::Batch&) override {
    note("validation_batch_end", c);
  }
  void on_validation_epoch_end(FitContext& c) override { note("validation_epoch_end", c); }
  void on_validation_end(FitContext& c) override { note("validation_end", c); }
  void on_exception(FitContext& c, const std::exception& problem) override {
    note(std::string("exception ") + problem.what(), c);
  }

 private:
  void note(const std::string& hook, const FitContext& c) {
    notes_.push_back(fmt::format("{}{} {}.{}", who_, hook, c.at.epoch, c.at.step));
  }

  const std::string who_;
  std::vector<std::string>& notes_;
};

class Plain : public Callback {
 public:
  std::string name() const override { return "plain"; }
};

class CallbackRun : public testing::Test {
 protected:
  CallbackRun() {
    options_.run.folder = folder_.path().string();
    options_.run.overwrite = true;
    options_.trainer.enable_progress_bar = false;
    options_.trainer.max_epochs = 1;
    options_.data.global_batch_size = 4;  // 2 steps an epoch
    options_.trainer.loggers = {"jsonl"};
  }

  observe::RunSummary fit(Task& task, const Callbacks& callbacks = {},
                          const comm::Group& group = comm::local::alone()) {
    Trainer trainer(options_, group);
    for (const auto& callback : callbacks) trainer.add(callback);
    return trainer.fit(task, Numbers(), Numbers());
  }

  std::string log_file() const { return read_file(folder_ / "run/metrics.jsonl"); }

  const TemporaryFolder folder_;
  TrainOptions options_;
};

TEST_F(CallbackRun, AreCalledInLightningsOrderBeforeTheTask) {
  options_.trainer.max_steps = 1;
  options_.trainer.accumulate_grad_batches = 2;
  options_.data.global_batch_size = 3;
  std::vector<std::string> notes;
  Noting<Task> task("task ", notes, linear());
  fit(task, {std::make_shared<Noting<Plain>>("", notes)});
  std::vector<std::string> of_callback, of_task;
  for (size_t i = 0; i < notes.size(); ++i) {
    if (notes[i].starts_with("task ")) {
      of_task.push_back(notes[i].substr(5));
      ASSERT_GT(i, 0u);
      EXPECT_EQ(notes[i - 1], of_task.back()) << "the callback's comes right before";
    } else {
      of_callback.push_back(notes[i]);
    }
  }
  EXPECT_EQ(of_callback, of_task);
  EXPECT_THAT(
      of_task,
      ElementsAre("fit_start 0.0", "train_start 0.0", "train_epoch_start 0.0",
                  "train_batch_start 0.0", "train_batch_end 0.0", "train_batch_start 0.0",
                  "before_optimizer_step 0.0", "train_batch_end 0.1", "validation_start 0.1",
                  "validation_epoch_start 0.1", "validation_batch_start 0.1",
                  "validation_batch_end 0.1", "validation_batch_start 0.1",
                  "validation_batch_end 0.1", "validation_batch_start 0.1",
                  "validation_batch_end 0.1", "validation_epoch_end 0.1", "validation_end 0.1",
                  "train_epoch_end 0.1", "train_end 1.1", "fit_end 1.1"));
}

TEST_F(CallbackRun, HearOfWhatEndsARun) {
  class Failing : public Task {
   public:
    using Task::Task;
    at::Tensor training_step(const data::Batch&) override { throw std::runtime_error("oh"); }
  };
  std::vector<std::string> notes;
  Noting<Failing> task("", notes, linear());
  EXPECT_THROW(fit(task), std::runtime_error);
  EXPECT_EQ(notes.back(), "exception oh 0.0");
}

TEST_F(CallbackRun, OfOneNameAreRefused) {
  Task task(linear());
  EXPECT_ERROR(fit(task, {std::make_shared<Plain>(), std::make_shared<Plain>()}), ErrorKind::usage,
               "[train] two callbacks have the same name; got plain, expected different names, "
               "because states "
               "are saved under them");
}

// Logs in all ways. The numbers of each rank are known to all ranks.
class ThreeRatesTask : public Task {
 public:
  using Task::Task;
  at::Tensor training_step(const data::Batch& batch) override {
    log("sum", batch.inputs.select(1, 0).sum(),
        {.on_step = true,
         .on_epoch = true,
         .reduce = observe::LogReduction::sum,
         .sync_dist = true});
    log("mean", batch.inputs.select(1, 0).mean(), {.on_epoch = true, .sync_dist = true});
    log("here", 1.5);
    return Task::training_step(batch);
  }
  void validation_step(const data::Batch& batch, Evaluation& evaluation) override {
    log("validation/mean", batch.inputs.select(1, 0).mean(), {.sync_dist = true});
    Task::validation_step(batch, evaluation);
  }
  void on_train_epoch_end(FitContext&) override {
    log("ends", 1, {.on_step = false, .on_epoch = true, .reduce = observe::LogReduction::sum});
  }
};

TEST_F(CallbackRun, LogOfATaskReachesTheLoggersReducedOverStepsAndRanks) {
  options_.trainer.log_every_n_steps = 2;
  for (const int ranks : {1, 2, 4}) {
    SCOPED_TRACE(ranks);
    std::map<std::string, double> metrics;
    comm::local::run(ranks, [&](comm::Group group) {
      ThreeRatesTask task(linear());
      class Reading : public Plain {
       public:
        explicit Reading(std::map<std::string, double>& all) : all_(all) {}
        void on_fit_end(FitContext& c) override {
          if (c.group.rank() == c.group.size() - 1) all_ = c.at.metrics;
        }
        std::map<std::string, double>& all_;
      };
      fit(task, {std::make_shared<Reading>(metrics)}, group);
    });
    EXPECT_EQ(metrics.at("sum_step"), 28);
    EXPECT_EQ(metrics.at("sum_epoch"), 28);
    EXPECT_EQ(metrics.at("mean_epoch"), 3.5);
    EXPECT_EQ(metrics.at("validation/mean"), 3.5);
    EXPECT_EQ(metrics.contains("here"), ranks == 1) << "not the same on all ranks";
    for (const char* part : {R"("sum_step":28.0)", R"("sum_epoch":28.0)", R"("here":1.5)",
                             R"("validation/mean":3.5)", R"("ends":1.0)"}) {
      EXPECT_THAT(log_file(), HasSubstr(part));
    }
  }
}

TEST_F(CallbackRun, SharesOfABatchInThreadsLogAsOne) {
  options_.trainer.strategy = "dp";
  options_.trainer.devices = 3;
  options_.trainer.log_every_n_steps = 2;
  ReplicatedTask task({std::make_shared<ThreeRatesTask>(linear()),
                       std::make_shared<ThreeRatesTask>(linear()),
                       std::make_shared<ThreeRatesTask>(linear())});
  fit(task);
  EXPECT_THAT(log_file(), HasSubstr(R"("sum_step":28.0)"));
  EXPECT_THAT(log_file(), HasSubstr(R"("mean_epoch":3.5)"));
  EXPECT_THAT(log_file(), HasSubstr(R"("validation/mean":3.5)"));
  EXPECT_THAT(log_file(), HasSubstr(R"("ends":1.0)"));
}

// Each validation logs one of the given scores, on all ranks.
class ListedScoresTask : public Task {
 public:
  explicit ListedScoresTask(std::vector<double> scores)
      : Task(linear()), scores_(std::move(scores)) {}
  void on_validation_epoch_end(FitContext& c) override {
    c.log->log("score", scores_.at(static_cast<size_t>(c.at.epoch)), {.sync_dist = true});
  }

 private:
  const std::vector<double> scores_;
};

class EarlyStoppingRun : public CallbackRun {
 protected:
  EarlyStoppingRun() {
    options_.trainer.max_epochs = 8;
    options_.early_stopping.monitor = "score";
    options_.early_stopping.patience = 2;
  }
  // Returns the number of epochs of a run with these scores.
  int64_t epochs(const std::vector<double>& scores, int ranks = 1) {
    int64_t result = 0;
    comm::local::run(ranks, [&](comm::Group group) {
      ListedScoresTask task(scores);
      const auto summary = fit(task, {}, group);
      EXPECT_EQ(summary.status, "finished");
      if (group.rank() == 0) result = summary.epochs;
    });
    return result;
  }
};

TEST_F(EarlyStoppingRun, EndsAfterPatience) {
  EXPECT_EQ(epochs({9, 8, 7, 7, 6, 6, 7, 1}), 7);
  EXPECT_EQ(epochs({9, 8, 7, 7, 6, 6, 7, 1}, 2), 7);
  options_.early_stopping.min_delta = 1.5;
  EXPECT_EQ(epochs({9, 8, 7, 6, 5, 4.5, 4, 1}), 7);
  options_.early_stopping.mode = "max";
  options_.early_stopping.min_delta = 0;
  EXPECT_EQ(epochs({1, 2, 2, 3, 3, 2, 9, 9}), 6);
}

TEST_F(EarlyStoppingRun, EndsAtThresholdsAndAtNaN) {
  EXPECT_EQ(epochs({9, NAN, 8, 7, 6, 5, 4, 3}), 2);
  options_.early_stopping.check_finite = false;
  EXPECT_EQ(epochs({9, NAN, 8, 7, 6, 5, 4, 3}), 8);
  options_.early_stopping.stopping_threshold = 5.5;
  EXPECT_EQ(epochs({9, 8, 7, 6, 5, 4, 3, 2}), 5);
  options_.early_stopping.divergence_threshold = 20;
  EXPECT_EQ(epochs({9, 8, 21, 7, 6, 5, 4, 3}), 3);
}

TEST_F(EarlyStoppingRun, MayWatchTheTrainingToo) {
  options_.early_stopping.monitor = "train/epoch_loss";
  options_.early_stopping.stopping_threshold = 1e9;
  EXPECT_EQ(epochs(std::vector<double>(8, 1)), 1);
}

TEST_F(EarlyStoppingRun, RefusesAMetricThatIsNotLogged) {
  options_.early_stopping.monitor = "scores";
  EXPECT_ERROR(epochs(std::vector<double>(8, 1)), ErrorKind::usage,
               "[train] early_stopping cannot monitor scores; got no such metric among those that "
               "are the same on all ranks, expected one of score, train/epoch_loss, "
               "validation/accuracy, validation/loss (did you mean score? a task's own must be "
               "logged with sync_dist)");
  options_.early_stopping.strict = false;
  EXPECT_EQ(epochs(std::vector<double>(8, 1)), 8);
}

}  // namespace
}  // namespace troika::train
