// Task::configure_optimizers(): groups of parameters, optimizers of the user's own, rates; and
// tasks made of a module and a loss.
#include "troika/train/task/optimizer_recipe.h"

#include <gmock/gmock.h>

#include <cmath>
#include <numeric>

#include "tests/train/error_words.h"
#include "tests/train/waves.h"
#include "troika/base/temporary_folder.h"
#include "troika/comm/local/local.h"
#include "troika/data/sampler.h"
#include "troika/train/trainer.h"

namespace troika::train {
namespace {

std::shared_ptr<nn::Model> make_net() {
  torch::nn::Sequential net(torch::nn::Linear(3, 6), torch::nn::Tanh(), torch::nn::Linear(6, 2));
  fill_with_waves(*net);
  return nn::from_sequential(net);
}

class RecipeTask : public Task {
 public:
  using Change = std::function<void(OptimizerRecipe&)>;
  RecipeTask(const std::shared_ptr<nn::Model>& model, Change change)
      : Task(model), change_(std::move(change)) {}
  OptimizerRecipe configure_optimizers(const TrainOptions& options) override {
    auto recipe = Task::configure_optimizers(options);
    change_(recipe);
    return recipe;
  }

 private:
  const Change change_;
};

class Recipes : public testing::Test {
 protected:
  Recipes() {
    options_.run.folder = folder_.path().string();
    options_.run.overwrite = true;
    options_.trainer.enable_progress_bar = false;
    options_.trainer.precision = "64";
    options_.trainer.loggers = {};
    options_.trainer.max_epochs = 2;
    options_.data.global_batch_size = 12;
    options_.optimizer = {.name = "adamw", .lr = 0.05, .weight_decay = 0.1};
  }

  // The weights after a run, of rank 0.
  std::vector<at::Tensor> fit(const RecipeTask::Change& change, int ranks = 1) {
    std::vector<at::Tensor> result;
    comm::local::run(ranks, [&](const comm::Group& group) {
      const auto model = make_net();
      RecipeTask task(model, change);
      Trainer(options_, group).fit(task, Waves(), Waves());
      if (group.rank() > 0) return;
      for (const auto& parameter : model->parameters()) result.push_back(parameter.detach());
    });
    return result;
  }

  const TemporaryFolder folder_;
  TrainOptions options_;
};

void expect_close(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_TRUE(actual[i].allclose(expected[i], 1e-10, 1e-12)) << i;
  }
}

bool is_weight(const std::string& name) {
  return name.ends_with("weight");
}

void group_weights(OptimizerRecipe& recipe) {
  recipe.groups = {{.contains = is_weight, .lr = 0.02, .weight_decay = 0.0}};
}

// LibTorch's own optimizer with the same two groups.
TEST_F(Recipes, GroupsHaveRatesAndDecaysOfTheirOwn) {
  options_.schedule.name = "constant";
  const auto model = make_net();
  model->to(at::kDouble);
  std::vector<at::Tensor> weights, biases;
  for (const auto& item : model->named_parameters()) {
    (is_weight(item.key()) ? weights : biases).push_back(item.value());
  }
  using torch::optim::AdamWOptions;
  torch::optim::AdamW optimizer(
      {torch::optim::OptimizerParamGroup(
           weights, std::make_unique<AdamWOptions>(AdamWOptions(0.02).weight_decay(0))),
       torch::optim::OptimizerParamGroup(
           biases, std::make_unique<AdamWOptions>(AdamWOptions(0.05).weight_decay(0.1)))},
      AdamWOptions(0.05));
  const Waves waves;
  const data::Sampler sampler({.size = 26, .global_batch = 12, .seed = 42, .ranks = {}});
  Task task(model);
  for (const int64_t epoch : {0, 1}) {
    for (const auto& indices : sampler.batches({.epoch = epoch, .position = 0})) {
      auto batch = waves.load(indices, {});
      batch.inputs = batch.inputs.to(at::kDouble);
      optimizer.zero_grad();
      task.training_step(batch).backward();
      optimizer.step();
    }
  }
  expect_close(fit(group_weights), model->parameters());
}

TEST_F(Recipes, GroupsAreTheSameUnderEveryStrategyAndOnAnyNumberOfRanks) {
  const auto alone = fit(group_weights);
  for (const char* strategy : {"ddp", "zero1", "zero2", "zero3"}) {
    options_.trainer.strategy = strategy;
    expect_close(fit(group_weights, 3), alone);
  }
}

TEST_F(Recipes, GroupsResumeToTheBit) {
  options_.schedule.name = "constant";
  const auto whole = fit(group_weights);
  options_.trainer.max_steps = 3;
  fit(group_weights);
  options_.trainer.max_steps = -1;
  options_.trainer.ckpt_path = "last";
  const auto resumed = fit(group_weights);
  ASSERT_EQ(resumed.size(), whole.size());
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(whole[i].equal(resumed[i])) << i;
}

TEST_F(Recipes, AnotherOptimizerMayBeMade) {
  const auto momentum = [](std::vector<optim::Parameter> parameters) {
    return optim::make_optimizer(std::move(parameters), {.name = "sgd", .lr = 0.05});
  };
  const auto expected = [&] {
    auto options = options_;
    options_.optimizer = {.name = "sgd", .lr = 0.05};
    const auto result = fit([](OptimizerRecipe&) {});
    options_ = options;
    return result;
  }();
  expect_close(fit([&](OptimizerRecipe& recipe) { recipe.make = momentum; }), expected);
  options_.trainer.strategy = "zero2";
  EXPECT_EQ(error_of([&] { fit([&](OptimizerRecipe& recipe) { recipe.make = momentum; }, 2); }),
            "[train] a strategy that shares parameters out among ranks; got optimizer of "
            "configure_optimizers(), which needs whole ones, expected one of optim.name, or one "
            "that treats each element by itself");
  expect_close(fit(
                   [&](OptimizerRecipe& recipe) {
                     recipe.make = momentum;
                     recipe.is_element_wise = true;
                   },
                   2),
               expected);
}

TEST_F(Recipes, TheRatesMayFollowAFunctionOfTheStep) {
  options_.schedule = {.name = "multi_step", .gamma = 0.5, .milestones = {1, 3}};
  const auto expected = fit([](OptimizerRecipe&) {});
  options_.schedule = {};
  expect_close(fit([](OptimizerRecipe& recipe) {
                 recipe.factor = [](int64_t step) { return step < 1 ? 1 : step < 3 ? 0.5 : 0.25; };
               }),
               expected);
}

// Points whose target is a number.
class Line : public data::Dataset {
 public:
  int64_t size() const override { return 26; }
  data::Batch load(std::span<const int64_t> indices, std::optional<uint64_t>) const override {
    const auto numbers = at::tensor(std::vector<int64_t>(indices.begin(), indices.end()));
    const auto inputs = (numbers.to(at::kDouble) / 13 - 1).unsqueeze(1);
    return {inputs, inputs * 2};
  }
};

TEST_F(Recipes, AModuleAndALossAreATask) {
  options_.optimizer = {.name = "sgd", .lr = 0.1};
  options_.trainer.max_epochs = 60;
  options_.checkpoint.enabled = false;
  const auto module = std::make_shared<torch::nn::LinearImpl>(1, 1);
  Task task(module, [](const at::Tensor& outputs, const at::Tensor& targets) {
    return at::mse_loss(outputs, targets);
  });
  Trainer trainer(options_, comm::local::alone());
  const auto summary = trainer.fit(task, Line(), Line());
  EXPECT_LT(summary.validation_loss, 1e-3);
  EXPECT_TRUE(std::isnan(summary.validation_accuracy));
  EXPECT_NEAR(module->weight.item<double>(), 2, 0.05);
  const auto tested = trainer.test(task, Line());
  ASSERT_EQ(tested.size(), 1u);
  EXPECT_EQ(tested[0].first, "test/loss");
  // The loss is the mean over samples, also for batches of different sizes.
  const at::NoGradGuard no_grad;
  std::vector<int64_t> all(26);
  std::iota(all.begin(), all.end(), 0);
  const auto batch = Line().load(all, {});
  EXPECT_NEAR(tested[0].second,
              at::mse_loss(module->forward(batch.inputs), batch.targets).item<double>(), 1e-15);
}

}  // namespace
}  // namespace troika::train
