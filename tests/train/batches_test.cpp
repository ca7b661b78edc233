// Batches of named tensors: through loaders, micro-batches, ranks, replicas, evaluation and
// prediction, each against one process.
#include <gmock/gmock.h>

#include "tests/support/errors.h"
#include "tests/train/waves.h"
#include "troika/base/temporary_folder.h"
#include "troika/checkpoint/safetensors.h"
#include "troika/comm/local/local.h"
#include "troika/compat/torch.h"
#include "troika/train/engine/placement.h"
#include "troika/train/task/replicated_task.h"
#include "troika/train/trainer.h"

namespace troika::train {
namespace {

constexpr int64_t kPairs = 26;

// Regression from two inputs, each sample with a weight; no tensor is called inputs or targets.
class Pairs : public data::Dataset {
 public:
  int64_t size() const override { return kPairs; }
  data::Batch load(std::span<const int64_t> indices, std::optional<uint64_t>) const override {
    const auto numbers = at::tensor(std::vector<int64_t>(indices.begin(), indices.end()));
    const auto phase = numbers.to(at::kFloat).unsqueeze(1);
    const auto left = at::sin(phase * at::tensor({0.7F, 1.3F, 2.9F}));
    const auto right = at::cos(phase * at::tensor({0.3F, 1.9F}));
    return {{},
            {},
            {{"left", left},
             {"right", right},
             {"value", left.sum(1) * right.sum(1)},
             {"weight", at::remainder(numbers, 3)}}};
  }
};

struct TwoArms : torch::nn::Module {
  TwoArms() {
    left = register_module("left", torch::nn::Linear(3, 5));
    right = register_module("right", torch::nn::Linear(2, 5));
    head = register_module("head", torch::nn::Linear(5, 1));
    fill_with_waves(*this);
  }
  at::Tensor forward(const at::Tensor& a, const at::Tensor& b) {
    return head->forward((left->forward(a) * right->forward(b)).tanh()).squeeze(1);
  }
  torch::nn::Linear left{nullptr}, right{nullptr}, head{nullptr};
};

std::shared_ptr<Task> make_pairs_task() {
  const auto module = std::make_shared<TwoArms>();
  return std::make_shared<Task>(
      module,
      [module](const data::Batch& batch) { return module->forward(batch["left"], batch["right"]); },
      [](const at::Tensor& outputs, const data::Batch& batch) {
        return ((outputs - batch["value"]).square() * batch["weight"]).mean();
      });
}

// The same task, whose module is given as blocks.
std::shared_ptr<Task> make_pairs_task_of_blocks() {
  const auto net = std::make_shared<TwoArms>();
  auto model = std::make_shared<nn::Model>();
  model->place_children(*net);
  model->add_block({"arms",
                    {"left", "right"},
                    {},
                    [net](const nn::Tensors& in) {
                      return (net->left->forward(in[0]) * net->right->forward(in[1])).tanh();
                    },
                    {"left", "right"}});
  model->add_block({"head", {"head"}, {}, [net](const at::Tensor& x) {
                      return net->head->forward(x).squeeze(1);
                    }});
  return std::make_shared<Task>(model, [](const at::Tensor& outputs, const data::Batch& batch) {
    return ((outputs - batch["value"]).square() * batch["weight"]).mean();
  });
}

struct Outcome {
  observe::RunSummary summary;
  std::vector<at::Tensor> weights;
  at::Tensor predictions;
};

class NamedTensorsOfABatch : public testing::Test {
 protected:
  NamedTensorsOfABatch() {
    options_.run.folder = folder_.path().string();
    options_.run.overwrite = true;
    options_.trainer.precision = "64";
    options_.trainer.max_epochs = 2;
    options_.trainer.accumulate_grad_batches = 2;
    options_.trainer.enable_progress_bar = false;
    options_.data.global_batch_size = 4;  // does not divide the samples
    options_.optimizer = {.name = "adamw", .lr = 0.05};
  }

  Outcome fit(int ranks, const std::function<std::shared_ptr<Task>()>& make = make_pairs_task) {
    Outcome outcome;
    comm::local::run(ranks, [&](comm::Group group) {
      const auto task = make();
      Trainer trainer(options_, group);
      const auto summary = trainer.fit(*task, Pairs(), Pairs());
      const auto all = gather_predictions(group, trainer.predict(*task, Pairs()));
      if (group.rank() == 0) outcome = {summary, task->module().parameters(), all};
    });
    return outcome;
  }

  static void expect_same(const Outcome& outcome, const Outcome& oracle) {
    EXPECT_EQ(outcome.summary.steps, oracle.summary.steps);
    EXPECT_EQ(outcome.summary.samples, oracle.summary.samples);
    for (size_t i = 0; i < oracle.weights.size(); ++i) {
      EXPECT_TRUE(outcome.weights[i].allclose(oracle.weights[i], 1e-10, 1e-10)) << i;
    }
    EXPECT_NEAR(outcome.summary.validation_loss, oracle.summary.validation_loss, 1e-10);
    EXPECT_TRUE(outcome.predictions.allclose(oracle.predictions, 1e-10, 1e-10));
  }

  const TemporaryFolder folder_;
  TrainOptions options_;
};

TEST_F(NamedTensorsOfABatch, RanksTrainAsOneProcess) {
  const auto oracle = fit(1);
  EXPECT_EQ(oracle.summary.steps, 6);
  EXPECT_EQ(oracle.summary.samples, 48);
  ASSERT_EQ(oracle.predictions.sizes(), at::IntArrayRef({kPairs}));
  EXPECT_TRUE(std::isnan(oracle.summary.validation_accuracy));
  for (const char* strategy : {"ddp", "zero2"}) {
    options_.trainer.strategy = strategy;
    expect_same(fit(4), oracle);
  }
}

TEST_F(NamedTensorsOfABatch, BlocksTakeThemByName) {
  const auto oracle = fit(1);
  expect_same(fit(1, make_pairs_task_of_blocks), oracle);
  options_.trainer.strategy = "zero3";
  for (const char* recompute : {"none", "full", "budget:1MiB"}) {
    options_.trainer.recompute = recompute;
    expect_same(fit(4, make_pairs_task_of_blocks), oracle);
  }
}

TEST_F(NamedTensorsOfABatch, ReplicasOfAProcessShareThem) {
  const auto oracle = fit(1);
  options_.trainer.strategy = "dp";
  options_.trainer.devices = 2;
  expect_same(fit(1,
                  [] {
                    return std::make_shared<ReplicatedTask>(
                        std::vector<std::shared_ptr<Task>>{make_pairs_task(), make_pairs_task()});
                  }),
              oracle);
}

// Compared with a hand-written loop without the trainer.
TEST_F(NamedTensorsOfABatch, TheStepIsThatOfTheWholeBatch) {
  options_.data.global_batch_size = kPairs;
  options_.trainer.accumulate_grad_batches = 1;
  options_.trainer.max_epochs = 1;
  options_.optimizer = {.name = "sgd", .lr = 0.1};
  const auto outcome = fit(2);
  const auto task = make_pairs_task();
  task->module().to(torch::kDouble);
  std::vector<int64_t> all(kPairs);
  std::iota(all.begin(), all.end(), 0);
  Placement placement;
  placement.precision = nn::parse_precision("64");
  const auto batch = placement.place(Pairs().load(all, {}));
  EXPECT_EQ(batch["left"].scalar_type(), at::kDouble) << "as the parameters";
  EXPECT_EQ(batch["weight"].scalar_type(), at::kLong);
  EXPECT_EQ(placement.place({{}, at::ones(2)})["targets"].scalar_type(), at::kDouble);
  EXPECT_EQ(placement.place({{}, at::ones(2, at::kLong)})["targets"].scalar_type(), at::kLong);
  task->training_step(batch).backward();
  const torch::NoGradGuard no_grad;
  auto parameters = task->module().parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].sub_(parameters[i].grad(), 0.1);
    EXPECT_TRUE(outcome.weights[i].allclose(parameters[i], 1e-12, 1e-12)) << i;
  }
}

TEST_F(NamedTensorsOfABatch, AreSavedWithABatchWhoseLossIsNotFinite) {
  EXPECT_THROW(fit(1,
                   [] {
                     const auto task = make_pairs_task();
                     task->module().parameters()[0].detach().fill_(NAN);
                     return task;
                   }),
               Error);
  const auto saved =
      checkpoint::load_safetensors(folder_ / "run/nonfinite-step-0-rank-0.safetensors");
  std::vector<std::string> names;
  for (const auto& [name, tensor] : saved) names.push_back(name);
  EXPECT_THAT(names, testing::UnorderedElementsAre("left", "right", "value", "weight"));
}

TEST_F(NamedTensorsOfABatch, ATaskThatReadsInputsSaysThatThereAreNone) {
  EXPECT_ERROR(
      fit(1, [] { return std::make_shared<Task>(std::make_shared<torch::nn::LinearImpl>(3, 1)); }),
      ErrorKind::usage,
      "[data] the batch has no tensor `inputs`; got left, right, value, weight (the "
      "data set's load() fills a batch)");
}

}  // namespace
}  // namespace troika::train
