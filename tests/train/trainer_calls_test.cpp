// Trainer::validate(), test() and predict() on any number of ranks: samples, weights, hooks.
#include <gmock/gmock.h>

#include <cmath>
#include <map>
#include <numeric>

#include "tests/train/error_words.h"
#include "tests/train/waves.h"
#include "troika/base/temporary_folder.h"
#include "troika/comm/local/local.h"
#include "troika/train/run/fit_context.h"
#include "troika/train/task/replicated_task.h"
#include "troika/train/trainer.h"

namespace troika::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class TrainerCalls : public testing::Test {
 protected:
  TrainerCalls() {
    options_.run.folder = folder_.path().string();
    options_.run.overwrite = true;
    options_.trainer.enable_progress_bar = false;
    options_.trainer.max_epochs = 1;
    options_.trainer.precision = "64";
    options_.trainer.loggers = {};
    options_.data.global_batch_size = 12;
    options_.data.workers = 0;
  }

  // Runs `body` with the same task on every rank, and returns the result of rank 0.
  template <typename Body>
  auto on_ranks(int ranks, const Body& body) {
    decltype(body(std::declval<Trainer&>(), std::declval<Task&>(), comm::local::alone())) result;
    comm::local::run(ranks, [&](comm::Group group) {
      const auto task = make_waves_task(6, 0.5);
      Trainer trainer(options_, group);
      auto own = body(trainer, *task, group);
      if (group.rank() == 0) result = std::move(own);
    });
    return result;
  }
  observe::MetricValues test_on(int ranks, const data::Dataset& dataset) {
    return on_ranks(ranks, [&](Trainer& trainer, Task& task, const comm::Group&) {
      return trainer.test(task, dataset);
    });
  }
  at::Tensor predict_on(int ranks, const data::Dataset& dataset) {
    return on_ranks(ranks, [&](Trainer& trainer, Task& task, const comm::Group& group) {
      return gather_predictions(group, trainer.predict(task, dataset));
    });
  }

  const TemporaryFolder folder_;
  TrainOptions options_;
};

void expect_near(const observe::MetricValues& actual, const observe::MetricValues& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_EQ(actual[i].first, expected[i].first);
    EXPECT_NEAR(actual[i].second, expected[i].second, 1e-13) << actual[i].first;
  }
}

// Returns the module's outputs for all samples at once.
at::Tensor forward_all(const data::Dataset& dataset) {
  const auto task = make_waves_task(6, 0.5);
  task->module().to(at::kDouble);
  task->module().eval();
  std::vector<int64_t> indices(static_cast<size_t>(dataset.size()));
  std::iota(indices.begin(), indices.end(), 0);
  const at::NoGradGuard no_grad;
  auto batch = dataset.load(indices, {});
  batch.inputs = batch.inputs.to(at::kDouble);
  return task->predict_step(batch);
}

TEST_F(TrainerCalls, TestsCountEverySampleOnceOnAnyNumberOfRanks) {
  for (const int64_t size : {26, 5, 1}) {
    const FewWaves data(size);
    const auto logits = forward_all(data);
    const auto targets = data.load(std::vector<int64_t>{0}, {}).targets;
    const auto alone = test_on(1, data);
    ASSERT_THAT(alone, ElementsAre(testing::Pair("test/loss", testing::Gt(0)),
                                   testing::Pair("test/accuracy", testing::Ge(0))));
    if (size == 1) {
      EXPECT_NEAR(alone[0].second, at::cross_entropy_loss(logits, targets).item<double>(), 1e-12);
    }
    for (const int ranks : {2, 3, 4}) expect_near(test_on(ranks, data), alone);
  }
}

TEST_F(TrainerCalls, PredictionsComeInTheOrderOfTheDataSet) {
  for (const int64_t size : {26, 5, 1}) {
    const FewWaves data(size);
    const auto expected = forward_all(data);
    for (const int ranks : {1, 2, 3, 4}) {
      const auto predictions = predict_on(ranks, data);
      ASSERT_EQ(predictions.sizes(), expected.sizes()) << ranks;
      EXPECT_TRUE(predictions.allclose(expected, 1e-12, 1e-12)) << size << " on " << ranks;
    }
  }
}

// As docs/trainer.md shows it.
class GatheringTask : public Task {
 public:
  static constexpr int64_t kWidth = 2;
  explicit GatheringTask(const std::shared_ptr<Task>& task)
      : Task(dynamic_cast<const LoggingTask&>(*task)) {}
  void test_step(const data::Batch& batch, Evaluation& evaluation) override {
    Task::test_step(batch, evaluation);
    outputs_.push_back(forward(batch.inputs));
  }
  void on_test_epoch_end(FitContext& context) override {
    const at::Tensor own =
        outputs_.empty() ? at::empty({0, kWidth}, at::kDouble) : at::cat(outputs_);
    const auto counts = at::empty({context.group.size()}, at::kLong);
    context.group.all_gather(counts, at::tensor({own.size(0)}));
    const auto* first = counts.data_ptr<int64_t>();
    const std::vector<int64_t> rows(first, first + counts.numel());
    all = at::empty({counts.sum().item<int64_t>(), kWidth}, at::kDouble);
    context.group.all_gather(all, own, rows);
  }

  at::Tensor all;

 private:
  std::vector<at::Tensor> outputs_;
};

TEST_F(TrainerCalls, AHookGathersTheOutputsOfAllRanksInTheOrderOfTheDataSet) {
  for (const int64_t size : {26, 5, 1}) {
    const FewWaves data(size);
    const auto expected = forward_all(data);
    for (const int ranks : {1, 4, 6}) {
      comm::local::run(ranks, [&](comm::Group group) {
        GatheringTask task(make_waves_task(6, 0.5));
        Trainer(options_, group).test(task, data);
        ASSERT_EQ(task.all.sizes(), expected.sizes()) << ranks;
        EXPECT_TRUE(task.all.allclose(expected, 1e-12, 1e-12)) << size << " on " << ranks;
      });
    }
  }
}

TEST_F(TrainerCalls, AllRanksUseTheWeightsOfRank0) {
  const auto alone = test_on(1, Waves());
  expect_near(on_ranks(3,
                       [](Trainer& trainer, Task& task, const comm::Group& group) {
                         const at::NoGradGuard no_grad;
                         for (auto& p : task.module().parameters()) p.add_(group.rank());
                         return trainer.test(task, Waves());
                       }),
              alone);
}

// With zero3, too, a rank has all weights after the run.
TEST_F(TrainerCalls, AfterARunTestsGiveWhatItsValidationGave) {
  for (const char* strategy : {"ddp", "zero3"}) {
    options_.trainer.strategy = strategy;
    on_ranks(2, [](Trainer& trainer, Task& task, const comm::Group&) {
      const auto summary = trainer.fit(task, Waves(), Waves());
      const auto tested = trainer.test(task, Waves());
      EXPECT_DOUBLE_EQ(tested.at(0).second, summary.validation_loss);
      EXPECT_EQ(tested.at(1).second, summary.validation_accuracy);
      EXPECT_EQ(trainer.validate(task, Waves()).at(0),
                std::pair(std::string("validation/loss"), tested.at(0).second));
      return 0;
    });
  }
}

TEST_F(TrainerCalls, WeightsComeFromTheCheckpointThatIsNamed) {
  options_.trainer.max_epochs = 3;
  options_.checkpoint.monitor = "validation/loss";
  options_.optimizer.lr = 0.5;
  options_.checkpoint.save_top_k = -1;
  std::map<std::string, double> losses;  // by checkpoint
  class Losses : public Callback {
   public:
    explicit Losses(std::map<std::string, double>& losses) : losses_(losses) {}
    std::string name() const override { return "losses"; }
    void on_checkpoint(FitContext& context, const std::filesystem::path& checkpoint) override {
      losses_[checkpoint] = context.at.validation_loss;
    }
    std::map<std::string, double>& losses_;
  };
  const auto group = comm::local::alone();
  Trainer trainer(options_, group);
  trainer.add(std::make_shared<Losses>(losses));
  const auto trained = make_waves_task(6, 0.5);
  const double last = trainer.fit(*trained, Waves(), Waves()).validation_loss;
  ASSERT_EQ(losses.size(), 3u);
  const auto loss_with = [&](const std::string& ckpt) {
    const auto task = make_waves_task(6, 0.5);
    return trainer.test(*task, Waves(), ckpt).at(0).second;
  };
  double best = INFINITY;
  for (const auto& [checkpoint, loss] : losses) {
    EXPECT_DOUBLE_EQ(loss_with(checkpoint), loss) << checkpoint;
    EXPECT_DOUBLE_EQ(loss_with(checkpoint + "/model.safetensors"), loss);
    best = std::min(best, loss);
  }
  EXPECT_DOUBLE_EQ(loss_with("last"), last);
  EXPECT_DOUBLE_EQ(loss_with("best"), best);
  EXPECT_NE(loss_with(""), last);
}

TEST_F(TrainerCalls, ACheckpointThatIsNotThereIsRefused) {
  Trainer trainer(options_, comm::local::alone());
  const auto task = make_waves_task(6, 0.5);
  const auto checkpoints = (folder_ / "run/checkpoints").string();
  EXPECT_EQ(error_of([&] { trainer.test(*task, Waves(), "best"); }),
            "[train] cannot test the best checkpoint; got none in " + checkpoints +
                ", expected a run that was trained (run.folder and run.name say which "
                "run)");
  EXPECT_THAT(error_of([&] { trainer.predict(*task, Waves(), "nowhere"); }),
              HasSubstr("expected last, best, the folder of a run or of a checkpoint, or a file"));
}

TEST_F(TrainerCalls, LimitsCountGlobalBatches) {
  options_.trainer.limit_test_batches = "1";
  options_.trainer.limit_predict_batches = "0.7";  // 2 of 3
  expect_near(test_on(2, Waves()), test_on(1, FewWaves(12)));
  EXPECT_EQ(predict_on(3, Waves()).size(0), 24);
  options_.trainer.limit_test_batches = options_.trainer.limit_predict_batches = "0";
  EXPECT_TRUE(test_on(2, Waves()).empty());
  EXPECT_FALSE(predict_on(2, Waves()).defined());
  options_.trainer.limit_predict_batches = "0.1";
  EXPECT_THAT(error_of([&] { predict_on(1, Waves()); }),
              HasSubstr("trainer.limit_predict_batches makes no sense; got 0.1 of 3 batches"));
  options_.trainer.fast_dev_run = 1;
  EXPECT_EQ(predict_on(1, Waves()).size(0), 12);
}

// Records the called hooks and steps.
template <typename Base>
class Noting : public Base {
 public:
  template <typename... Arguments>
  explicit Noting(std::vector<std::string>& notes, Arguments&&... arguments)
      : Base(std::forward<Arguments>(arguments)...), notes_(notes) {}

  void on_fit_start(FitContext&) override { notes_.push_back("fit_start"); }
  void on_train_start(FitContext&) override { notes_.push_back("train_start"); }
  void on_validation_start(FitContext& c) override { note("validation_start", c); }
  void on_validation_end(FitContext& c) override { note("validation_end", c); }
  void on_test_start(FitContext& c) override { note("test_start", c); }
  void on_test_epoch_start(FitContext& c) override { note("test_epoch_start", c); }
  void on_test_batch_start(FitContext& c, const data::Batch&) override {
    note("test_batch_start", c);
  }
  void on_test_batch_end(FitContext& c, const data::Batch&) override { note("test_batch_end", c); }
  void on_test_epoch_end(FitContext& c) override { note("test_epoch_end", c); }
  void on_test_end(FitContext& c) override { note("test_end", c); }
  void on_predict_start(FitContext& c) override { note("predict_start", c); }
  void on_predict_epoch_start(FitContext& c) override { note("predict_epoch_start", c); }
  void on_predict_batch_start(FitContext& c, const data::Batch&) override {
    note("predict_batch_start", c);
  }
  void on_predict_batch_end(FitContext& c, const data::Batch& batch,
                            const at::Tensor& predictions) override {
    EXPECT_EQ(predictions.size(0), batch.size());
    note("predict_batch_end", c);
  }
  void on_predict_epoch_end(FitContext& c) override { note("predict_epoch_end", c); }
  void on_predict_end(FitContext& c) override { note("predict_end", c); }
  void on_exception(FitContext& c, const std::exception& problem) override {
    notes_.push_back(std::string(run_mode_name(c.mode)) + " " + problem.what());
  }

 protected:
  void note(const std::string& what, const FitContext& context) {
    EXPECT_FALSE(context.task.module().is_training());
    EXPECT_FALSE(at::GradMode::is_enabled()) << what;
    notes_.push_back(std::string(run_mode_name(context.mode)) + " " + what);
  }

  std::vector<std::string>& notes_;
};

class Plain : public Callback {
 public:
  std::string name() const override { return "plain"; }
};

// Overrides the steps.
class OwnSteps : public Task {
 public:
  using Task::Task;
  void test_step(const data::Batch& batch, Evaluation& evaluation) override {
    Task::test_step(batch, evaluation);
    log("greatest", batch.inputs.max(), {.reduce = observe::LogReduction::max, .sync_dist = true});
  }
  at::Tensor predict_step(const data::Batch& batch) override {
    if (fails) throw std::runtime_error("nothing to say");
    return forward(batch.inputs).argmax(1).slice(0, 0, rows);
  }
  bool fails = false;
  int64_t rows = 1000;
};

std::shared_ptr<torch::nn::LinearImpl> linear() {
  return std::make_shared<torch::nn::LinearImpl>(3, 2);
}

TEST_F(TrainerCalls, HooksHaveLightningsOrderCallbacksFirst) {
  std::vector<std::string> notes, of_callback;
  Noting<OwnSteps> task(notes, linear());
  Trainer trainer(options_, comm::local::alone());
  trainer.add(std::make_shared<Noting<Plain>>(of_callback));
  const auto tested = trainer.test(task, FewWaves(13));
  EXPECT_THAT(notes,
              ElementsAre("test test_start", "test test_epoch_start", "test test_batch_start",
                          "test test_batch_end", "test test_batch_start", "test test_batch_end",
                          "test test_epoch_end", "test test_end"));
  EXPECT_EQ(of_callback, notes);
  EXPECT_EQ(tested.at(2).first, "greatest");
  EXPECT_NEAR(tested.at(2).second, 0.99, 0.01);
  notes.clear();
  const auto classes = trainer.predict(task, FewWaves(3));
  EXPECT_EQ(classes.scalar_type(), at::kLong);
  EXPECT_THAT(notes, ElementsAre("predict predict_start", "predict predict_epoch_start",
                                 "predict predict_batch_start", "predict predict_batch_end",
                                 "predict predict_epoch_end", "predict predict_end"));
  notes.clear();
  trainer.validate(task, FewWaves(3));
  EXPECT_THAT(notes, ElementsAre("validate validation_start", "validate validation_end"));
  notes.clear();
  task.fails = true;
  EXPECT_THROW(trainer.predict(task, FewWaves(3)), std::runtime_error);
  EXPECT_EQ(notes.back(), "predict nothing to say");
}

// Logs in all hooks, and fails.
class LoggingAlways : public Callback {
 public:
  std::string name() const override { return "logging"; }
  void on_predict_batch_end(FitContext& c, const data::Batch&, const at::Tensor&) override {
    c.log->log("x", 1);
  }
  void on_test_epoch_end(FitContext& c) override {
    c.log->log("x", 1);
    throw std::runtime_error("enough");
  }
  void on_exception(FitContext& c, const std::exception&) override {
    c.log->log("y", 1);
    was_told = true;
  }

  bool was_told = false;
};

TEST_F(TrainerCalls, HooksMayLogThroughoutThem) {
  const auto logging = std::make_shared<LoggingAlways>();
  const auto task = make_waves_task(6, 0.5);
  Trainer trainer(options_, comm::local::alone());
  trainer.add(logging);
  EXPECT_EQ(trainer.predict(*task, Waves()).size(0), 26);
  EXPECT_THROW(trainer.test(*task, Waves()), std::runtime_error);
  EXPECT_TRUE(logging->was_told);
}

TEST_F(TrainerCalls, PredictionsMustHaveARowForEachSample) {
  OwnSteps task(linear());
  task.rows = 2;
  Trainer trainer(options_, comm::local::alone());
  EXPECT_EQ(error_of([&] { trainer.predict(task, FewWaves(3)); }),
            "[train] predict_step gives one row for each sample; got shape [2], expected 3 rows");
}

TEST_F(TrainerCalls, PredictionsOfDifferentShapesAreNotPutTogether) {
  EXPECT_EQ(
      error_of([] {
        comm::local::run(3, [](const comm::Group& group) {
          gather_predictions(group, group.rank() == 0 ? at::Tensor() : at::ones({2, group.rank()}));
        });
      }),
      "[train] the predictions of all samples are to have one type and shape; got Float [2] "
      "on rank 2, expected Float [1], as on the ranks before");
}

TEST_F(TrainerCalls, ReplicasInThreadsTestAndPredictByTheFirst) {
  std::vector<std::shared_ptr<Task>> tasks;
  for (int i = 0; i < 2; ++i) tasks.push_back(std::make_shared<OwnSteps>(linear()));
  ReplicatedTask task(tasks);
  Trainer trainer(options_, comm::local::alone());
  EXPECT_EQ(trainer.test(task, Waves()).at(2).first, "greatest");
  EXPECT_EQ(trainer.predict(task, Waves()).dim(), 1);
}

}  // namespace
}  // namespace troika::train
