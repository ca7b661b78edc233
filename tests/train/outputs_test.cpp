// Tasks whose model returns several tensors, and tasks that cannot be cut into stages.
#include "troika/train/task/outputs.h"
#include "troika/layout/plan.h"

#include <gmock/gmock.h>

#include "tests/support/errors.h"
#include "tests/train/waves.h"
#include "troika/base/temporary_folder.h"
#include "troika/comm/local/local.h"
#include "troika/compat/torch.h"
#include "troika/train/task/cuttable.h"
#include "troika/train/task/step_error.h"
#include "troika/train/trainer.h"

namespace troika::train {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(Outputs, AreFoundByName) {
  const auto one = at::ones({2}), other = at::zeros({3});
  const std::vector<std::string> names{"mean", nn::kPassing}, alone{"mean"};
  const Outputs both(names, {one, other});
  EXPECT_TRUE(both["mean"].is_same(one));
  EXPECT_TRUE(both["outputs"].is_same(other));
  ASSERT_EQ(both.named().size(), 2);
  EXPECT_EQ(both.named()[1].first, "outputs");
  EXPECT_TRUE(Outputs(alone, {one})["mean"].is_same(one));
  EXPECT_TRUE(Outputs(alone, {one}).only().is_same(one));
  EXPECT_TRUE(Outputs(one).only().is_same(one));
  EXPECT_ERROR(both["deviation"], ErrorKind::usage,
               "[train] the model has no such output; got deviation, expected mean, outputs");
  const Outputs unnamed(one);
  EXPECT_ERROR(unnamed["mean"], ErrorKind::usage,
               "[train] the model has no such output; got mean, expected outputs");
  EXPECT_ERROR(both.only(), ErrorKind::usage,
               "[train] the model gives several outputs; got mean, outputs, expected one (a loss "
               "of your own takes them by name: loss(outputs, batch))");
}

// Returns a model that gives a mean and the logarithm of a deviation for each sample.
std::shared_ptr<nn::Model> make_gaussian() {
  torch::manual_seed(5);
  auto model = std::make_shared<nn::Model>();
  auto body = model->place("body", torch::nn::Linear(3, 8));
  auto mean = model->place("mean", torch::nn::Linear(8, 1));
  auto deviation = model->place("deviation", torch::nn::Linear(8, 1));
  model->add_block(
      {"body", {"body"}, {}, [=](const at::Tensor& x) mutable { return body->forward(x).tanh(); }});
  model->add_block({"head",
                    {"mean", "deviation"},
                    {},
                    [=](const nn::Tensors& in) mutable {
                      return nn::Tensors{mean->forward(in[0]), deviation->forward(in[0])};
                    },
                    {nn::kPassing},
                    {"mean", "deviation"}});
  return model;
}

at::Tensor likelihood(const at::Tensor& mean, const at::Tensor& deviation,
                      const data::Batch& batch) {
  const auto distance = (batch.targets.view({-1, 1}) - mean) / deviation.exp();
  return (deviation + distance * distance / 2).mean();
}

at::Tensor named_loss(const Outputs& outputs, const data::Batch& batch) {
  return likelihood(outputs["mean"], outputs["deviation"], batch);
}

class Gaussian : public Task {
 public:
  using Task::Task;
  at::Tensor loss(const Outputs& outputs, const data::Batch& batch) override {
    return named_loss(outputs, batch);
  }
};

data::Batch some_points() {
  return {at::linspace(-1, 1, 12).view({4, 3}), at::tensor({0, 1, 1, 0})};
}

TEST(SeveralOutputs, GoToALossByTheirNames) {
  const auto model = make_gaussian();
  const auto batch = some_points();
  const auto outputs = model->forward(nn::Tensors{batch.inputs});
  likelihood(outputs[0], outputs[1], batch).backward();
  std::vector<at::Tensor> expected;
  for (const auto& parameter : model->parameters()) expected.push_back(parameter.grad().clone());
  Task given(model, named_loss);
  Gaussian overriding(model);
  for (Task* task : std::vector<Task*>{&given, &overriding}) {
    for (const char* policy : {"none", "full"}) {
      task->recompute(layout::recompute_plan(policy, 2));
      model->zero_grad(/*set_to_none=*/true);
      task->training_step(batch).backward();
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(model->parameters()[i].grad().equal(expected[i])) << policy << i;
      }
    }
    task->recompute({});
    Evaluation evaluation;
    task->validation_step(batch, evaluation);
    EXPECT_NEAR(evaluation.loss.compute().item<double>(),
                likelihood(outputs[0], outputs[1], batch).item<double>(), 1e-6);
  }
}

TEST(SeveralOutputs, NeedALossOfTheirOwn) {
  EXPECT_THAT([] { Task(make_gaussian()).training_step(some_points()); },
              testing::ThrowsMessage<Error>(testing::HasSubstr(
                  "the model gives several outputs; got mean, deviation, expected one")));
}

TEST(SeveralOutputs, AreToldWithTheErrorsOfALoss) {
  Task task(make_gaussian(), [](const Outputs& outputs, const data::Batch&) {
    return outputs["mean"].matmul(outputs["deviation"]).sum();
  });
  try {
    task.training_step(some_points());
    FAIL() << "not refused";
  } catch (const LossError& error) {
    EXPECT_EQ(error.outputs(), "mean Float [4, 1], deviation Float [4, 1]");
  }
}

// Two ranks learn what one does.
TEST(SeveralOutputs, AreTrainedOnByAnyNumberOfRanks) {
  const TemporaryFolder folder;
  TrainOptions options;
  options.run.folder = folder.path().string();
  options.trainer.max_steps = 4;
  options.data.global_batch_size = 8;
  options.optimizer = {.name = "sgd", .lr = 0.1};
  std::vector<std::vector<at::Tensor>> trained;
  for (const char* strategy : {"ddp", "zero3"}) {
    options.trainer.strategy = strategy;
    for (const int ranks : {1, 2}) {
      auto& mine = trained.emplace_back();
      options.run.name = std::string(strategy) + std::to_string(ranks);
      // Ranks are threads, which share the generator that the values come from.
      const std::vector<std::shared_ptr<nn::Model>> models{make_gaussian(), make_gaussian()};
      comm::local::run(ranks, [&](comm::Group group) {
        const auto& model = models[static_cast<size_t>(group.rank())];
        Task task(model, named_loss);
        Trainer(options, group).fit(task, Waves(), Waves());
        if (group.rank() != 0) return;
        for (const auto& parameter : model->parameters()) {
          mine.push_back(parameter.detach().clone());
        }
      });
    }
  }
  for (const auto& mine : trained) {
    for (size_t i = 0; i < mine.size(); ++i) {
      EXPECT_TRUE(at::allclose(mine[i], trained[0][i], 1e-5, 1e-6)) << i;
      EXPECT_FALSE(mine[i].equal(make_gaussian()->parameters()[i]));
    }
  }
}

class Stepping : public Task {
 public:
  using Task::Task;
  at::Tensor training_step(const data::Batch& batch) override { return Task::training_step(batch); }
};

class SteppingToo : public Stepping {
 public:
  using Stepping::Stepping;
};

class Validating : public Task {
 public:
  using Task::Task;
  void validation_step(const data::Batch& batch, Evaluation& evaluation) override {
    Task::validation_step(batch, evaluation);
  }
};

class Testing : public Task {
 public:
  using Task::Task;
  void test_step(const data::Batch& batch, Evaluation& evaluation) override {
    Task::test_step(batch, evaluation);
  }
};

class Predicting : public Task {
 public:
  using Task::Task;
  at::Tensor predict_step(const data::Batch& batch) override { return Task::predict_step(batch); }
};

TEST(Cutting, KnowsAStepOfATasksOwn) {
  EXPECT_THAT(Task(make_gaussian()).own_steps(), IsEmpty());
  EXPECT_THAT(Gaussian(make_gaussian()).own_steps(), IsEmpty());
  EXPECT_THAT(Stepping(make_gaussian()).own_steps(), ElementsAre("training_step"));
  EXPECT_THAT(SteppingToo(make_gaussian()).own_steps(), ElementsAre("training_step"));
  const std::unique_ptr<Task> by_base = std::make_unique<Stepping>(make_gaussian());
  EXPECT_THAT(by_base->own_steps(), ElementsAre("training_step"));
  EXPECT_THAT(Validating(make_gaussian()).own_steps(), ElementsAre("validation_step"));
  EXPECT_THAT(Testing(make_gaussian()).own_steps(), ElementsAre("test_step"));
  EXPECT_THAT(Predicting(make_gaussian()).own_steps(), ElementsAre("predict_step"));
}

class Cut : public testing::Test {
 protected:
  static std::string refused(Task& task, const std::string& axes) {
    const TemporaryFolder folder;
    TrainOptions options;
    options.run.folder = folder.path().string();
    options.trainer.max_steps = 1;
    options.data.batch_size = 4;
    options.trainer.plan = "[mesh]\naxes = \"" + axes + "\"\n";
    std::string told = "none";
    comm::local::run(1, [&](comm::Group group) {
      try {
        Trainer(options, group).fit(task, Waves(), Waves());
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::usage);
        told = error.what();
      }
    });
    return told;
  }
};

TEST_F(Cut, ATrainingStepOfATasksOwnNeedsOneStage) {
  SteppingToo task(make_waves_model(4, 0));
  EXPECT_EQ(refused(task, "pipeline=2"),
            "[train] troika::train::(anonymous namespace)::SteppingToo::training_step needs the "
            "whole model in one stage; got 2 pipeline stages (mesh.axes pipeline=2), expected one "
            "stage, or a task whose loss is loss(outputs, batch) (override Task::loss in place of "
            "training_step, or set pipeline=1)");
  EXPECT_EQ(refused(task, "pipeline=1"), "none");
}

TEST_F(Cut, StepsWithoutTrainingOfATasksOwnNeedOneStage) {
  const std::string asked = "got 2 pipeline stages (mesh.axes pipeline=2), expected one stage, ";
  const auto expect_refused = [&](Task& task, const std::string& step, const std::string& way) {
    EXPECT_EQ(refused(task, "pipeline=2"), "[train] troika::train::(anonymous namespace)::" + step +
                                               " needs the whole model in one stage; " + asked +
                                               way);
    EXPECT_EQ(refused(task, "pipeline=1"), "none");
  };
  const auto by_loss = [](const std::string& step) {
    return "or a task whose loss is loss(outputs, batch) (override Task::loss in place of " + step +
           ", or set pipeline=1)";
  };
  Validating validating(make_waves_model(4, 0));
  expect_refused(validating, "Validating::validation_step", by_loss("validation_step"));
  Testing testing(make_waves_model(4, 0));
  expect_refused(testing, "Testing::test_step", by_loss("test_step"));
  Predicting predicting(make_waves_model(4, 0));
  expect_refused(predicting, "Predicting::predict_step",
                 "or a task that predicts its model's only output (predict with another task, "
                 "which is not cut, or set pipeline=1)");
}

TEST_F(Cut, ATaskWithoutBlocksNeedsOneStage) {
  const auto model = make_waves_model(4, 0);
  Task task(model, [&](const at::Tensor& inputs) { return model->forward(inputs); });
  EXPECT_EQ(refused(task, "pipeline=2"),
            "[train] troika::train::Task has no blocks to cut into stages; got 2 pipeline stages "
            "(mesh.axes pipeline=2), expected one stage, or a task made of an nn::Model "
            "(nn::from_sequential() and nn::Model::add_block() make one)");
}

TEST_F(Cut, BlocksAndALossCanBeCut) {
  layout::Plan plan;
  plan.mesh = layout::Mesh(layout::Axis::pipeline, 2);
  EXPECT_NO_THROW(require_cuttable(Task(make_waves_model(4, 0)), plan));
  EXPECT_NO_THROW(require_cuttable(Gaussian(make_gaussian()), plan));
}

}  // namespace
}  // namespace troika::train
