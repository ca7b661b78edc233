// The effects of trainer.precision on a run.
#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "tests/support/errors.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/checkpoint/checkpoint.h"
#include "troika/checkpoint/safetensors.h"
#include "troika/comm/local/local.h"
#include "troika/compat/torch.h"
#include "troika/nn/batch_norm.h"
#include "troika/nn/sequential.h"
#include "troika/nn/state.h"
#include "troika/parallel/data_parallel.h"
#include "troika/train/engine/optimization.h"
#include "troika/train/trainer.h"

namespace troika::train {
namespace {

// Four overlapping clouds of points. Their distances do not depend on the number of dimensions.
class Clouds : public data::Dataset {
 public:
  explicit Clouds(std::vector<int64_t> shape = {8}) : shape_(std::move(shape)) {
    const auto generator = at::detail::createCPUGenerator(5);
    targets_ = at::arange(256, at::kLong) % 4;
    const int64_t dimensions = c10::multiply_integers(shape_);
    const auto centres = at::randn({4, dimensions}, generator) * std::sqrt(8.0 / dimensions);
    inputs_ = centres.index_select(0, targets_) + at::randn({256, dimensions}, generator);
  }
  int64_t size() const override { return 256; }
  data::Batch load(std::span<const int64_t> indices, std::optional<uint64_t>) const override {
    const auto which = torch::tensor(std::vector<int64_t>(indices.begin(), indices.end()));
    auto batch_shape = shape_;
    batch_shape.insert(batch_shape.begin(), which.numel());
    return {inputs_.index_select(0, which).view(batch_shape), targets_.index_select(0, which)};
  }
  int64_t num_classes() const override { return 4; }
  std::vector<int64_t> input_shape() const override { return shape_; }

 private:
  const std::vector<int64_t> shape_;
  at::Tensor inputs_, targets_;
};

class PrecisionOfARun : public testing::Test {
 protected:
  void prepare(const std::string& precision) {
    options_.run.folder = folder_.path().string();
    options_.run.overwrite = true;
    options_.run.name = precision;
    options_.trainer.precision = precision;
    options_.trainer.max_epochs = 5;
    options_.trainer.enable_progress_bar = false;
    options_.data.batch_size = 16;
    options_.optimizer = {.name = "adamw", .lr = 0.01};
    torch::manual_seed(9);
  }
  observe::RunSummary fit_task(Task& task, const Clouds& clouds = Clouds()) {
    return Trainer(options_, comm::local::alone()).fit(task, clouds, clouds);
  }
  observe::RunSummary fit(const std::string& precision) {
    prepare(precision);
    module_ = torch::nn::Sequential(torch::nn::Linear(8, 32), torch::nn::ReLU(),
                                    torch::nn::Linear(32, 4));
    Task task(module_.ptr());
    return fit_task(task);
  }

  const TemporaryFolder folder_;
  TrainOptions options_;
  torch::nn::Sequential module_;
};

TEST_F(PrecisionOfARun, HalfAsManyBitsReachTheSameLoss) {
  const double whole = fit("32").validation_loss;
  EXPECT_LT(whole, 0.5);
  for (const char* precision : {"bf16-mixed", "bf16-true"}) {
    const double loss = fit(precision).validation_loss;
    EXPECT_NEAR(loss, whole, 0.02 * whole) << precision;
    EXPECT_NE(loss, whole) << precision;
  }
}

TEST_F(PrecisionOfARun, ConvolutionsAndBatchNormsReachItToo) {
  const auto learn = [&](const std::string& precision) {
    prepare(precision);
    using torch::nn::Conv2d, torch::nn::Conv2dOptions;
    torch::nn::Sequential net(Conv2d(Conv2dOptions(2, 16, 3).padding(1)), nn::BatchNorm(16),
                              torch::nn::ReLU(), Conv2d(16, 4, 4), torch::nn::Flatten());
    Task task(nn::from_sequential(net));
    return fit_task(task, Clouds({2, 4, 4})).validation_loss;
  };
  const double whole = learn("32");
  const double mixed = learn("bf16-mixed");
  EXPECT_LT(whole, 0.5);
  EXPECT_NEAR(mixed, whole, 0.02 * whole);
  EXPECT_NE(mixed, whole);
}

TEST_F(PrecisionOfARun, CheckpointsHoldTheMasters) {
  const auto file = fit("bf16-true").checkpoint;
  const auto saved = checkpoint::load_safetensors(file);
  const auto state = nn::named_state(*module_);
  ASSERT_EQ(saved.size(), state.size());
  bool finer = false;
  for (size_t i = 0; i < saved.size(); ++i) {
    EXPECT_EQ(saved[i].first, state[i].first);
    EXPECT_EQ(saved[i].second.scalar_type(), at::kFloat);
    EXPECT_EQ(state[i].second.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(saved[i].second.to(at::kBFloat16).equal(state[i].second)) << state[i].first;
    finer = finer || !saved[i].second.equal(state[i].second.to(at::kFloat));
  }
  EXPECT_TRUE(finer);
}

TEST_F(PrecisionOfARun, Float16IsLossScaledOrRefused) {
  for (const std::string precision : {"16-mixed", "16-true"}) {
    if (compat::torch_version().starts_with("2")) {
      EXPECT_NEAR(fit(precision).validation_loss, fit("32").validation_loss, 0.02) << precision;
      EXPECT_THAT(read_file(folder_ / precision / "metrics.csv"),
                  testing::HasSubstr("train/loss_scale"));
      continue;
    }
    EXPECT_ERROR(fit(precision), ErrorKind::usage,
                 "[nn] LibTorch " + compat::torch_version() +
                     " has no Half matrix products and convolutions on cpu; got precision " +
                     precision + " (use bf" + precision + ")");
  }
}

struct CountingTanh : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) {
    if (is_training()) ++calls;
    return input.tanh();
  }
  int calls = 0;
};

// With a batch norm, whose statistics would show that a batch was counted twice.
TEST_F(PrecisionOfARun, RecomputedActivationsGiveTheSameRun) {
  const auto fit_model = [&](const std::string& policy) {
    prepare("bf16-mixed");
    options_.trainer.recompute = policy;
    options_.trainer.memory_check = "off";  // which calls the model, too
    const auto tanh = std::make_shared<CountingTanh>();
    const torch::nn::Sequential layers(torch::nn::Linear(8, 32), torch::nn::BatchNorm1d(32), tanh,
                                       torch::nn::Dropout(0.1), torch::nn::Linear(32, 4));
    Task task(nn::from_sequential(layers));
    const double loss = fit_task(task).validation_loss;
    return std::pair{loss, tanh->calls};
  };
  const auto [loss, calls] = fit_model("none");
  EXPECT_EQ(calls, 5 * 16);
  for (const char* policy : {"full", "every_2"}) {
    EXPECT_EQ(fit_model(policy), std::pair(loss, 2 * calls)) << policy;
  }
  EXPECT_EQ(fit_model("sqrt"), std::pair(loss, calls)) << "the first two blocks alone";
  // Four times more to measure, and as in "none" where there is room.
  EXPECT_EQ(fit_model("budget:1GiB"), std::pair(loss, calls + 4));
  const auto [tight_loss, tight_calls] = fit_model("budget:6KiB");
  EXPECT_EQ(tight_loss, loss);
  EXPECT_GE(tight_calls, 2 * calls);
}

TEST_F(PrecisionOfARun, ARunRecomputesByItsOwnOptions) {
  prepare("32");
  const auto tanh = std::make_shared<CountingTanh>();
  Task task(nn::from_sequential(
      torch::nn::Sequential(torch::nn::Linear(8, 32), tanh, torch::nn::Linear(32, 4))));
  const auto calls_of = [&](const std::string& policy) {
    options_.trainer.recompute = policy;
    const int before = tanh->calls;
    fit_task(task);
    return tanh->calls - before;
  };
  const int calls = calls_of("none");
  EXPECT_EQ(calls_of("full"), 2 * calls);
  EXPECT_EQ(calls_of("none"), calls);
}

TEST_F(PrecisionOfARun, OnlyAModelsActivationsAreRecomputed) {
  options_.trainer.recompute = "full";
  EXPECT_ERROR(
      fit("32"), ErrorKind::usage,
      "[train] activations can be recomputed between the blocks of a model only; got "
      "trainer.recompute for a task of another module, expected a task made of an nn::Model "
      "(nn::from_sequential() makes one)");
}

TEST_F(PrecisionOfARun, OnlyAGpusActivationsGoToTheHost) {
  options_.offload.activations = "host";
  EXPECT_ERROR(fit("32"), ErrorKind::usage,
               "[train] offload.activations does not go with where the run computes; got host for "
               "cpu, expected a folder for files");
}

TEST_F(PrecisionOfARun, ABudgetMustSuffice) {
  prepare("32");
  options_.trainer.recompute = "budget:100";
  Task task(nn::from_sequential(torch::nn::Sequential(torch::nn::Linear(8, 4))));
  EXPECT_ERROR(
      fit_task(task), ErrorKind::usage,
      "[layout] activations do not fit into the memory for them, whatever is recomputed; got "
      "100 B, expected more");
}

struct Ones : torch::nn::Module {
  explicit Ones(at::ScalarType type) : weight(register_parameter("weight", at::ones({4}, type))) {}
  at::Tensor weight;
};

// With the gradients that a backward pass in float16 would give.
TEST(Optimization, AnOverflowCostsAStep) {
  for (const char* name : {"16-mixed", "16-true"}) {
    const auto precision = nn::parse_precision(name);
    Ones module(precision.parameters);
    const auto& weight = module.weight;
    parallel::DataParallel ddp(module, comm::local::alone());
    Optimization optimization(precision, {{"weight", weight}},
                              {.optimizer = {.lr = 0.5, .momentum = 0}, .schedule = {}});
    EXPECT_EQ(optimization.scaled(torch::tensor(1.0)).item<double>(), 65536);

    weight.mutable_grad() = at::full({4}, std::numeric_limits<float>::infinity(), weight.options());
    optimization.step(ddp);
    EXPECT_EQ(optimization.skipped(), 1) << name;
    EXPECT_EQ(optimization.loss_scale(), 32768) << name;
    EXPECT_TRUE(weight.equal(at::ones({4}, weight.options()))) << name;

    weight.mutable_grad() = at::full({4}, 32768, weight.options());
    optimization.step(ddp);
    EXPECT_EQ(optimization.skipped(), 1) << name;
    EXPECT_TRUE(weight.equal(at::full({4}, 0.5, weight.options()))) << name;
  }
}

TEST(Optimization, ClipsGradientsInTheirOwnUnits) {
  for (const char* name : {"32", "16-mixed", "16-true"}) {
    for (const char* by : {"norm", "value"}) {
      const auto precision = nn::parse_precision(name);
      Ones module(precision.parameters);
      parallel::DataParallel ddp(module, comm::local::alone());
      Optimization optimization(precision, {{"weight", module.weight}},
                                {.optimizer = {.lr = 1, .momentum = 0}, .schedule = {}});
      optimization.scaled((module.weight.to(at::kFloat) * 0.25).sum()).backward();
      ddp.finish_backward();
      // Four gradients of 0.25 have the norm 0.5.
      optimization.clip(ddp, by == std::string("norm") ? 0.25 : 0.125, by);
      optimization.step(ddp);
      EXPECT_TRUE(module.weight.eq(1 - 0.125).all().item<bool>()) << name << " " << by;
    }
  }
}

TEST(Optimization, OthersAreNotScaled) {
  for (const char* name : {"32", "64", "bf16-mixed", "bf16-true"}) {
    const auto precision = nn::parse_precision(name);
    Ones module(precision.parameters);
    const parallel::DataParallel ddp(module, comm::local::alone());
    const Optimization optimization(precision, {{"weight", module.weight}}, OptimizerRecipe());
    EXPECT_FALSE(optimization.loss_scale()) << name;
    EXPECT_EQ(optimization.masters().size(), precision.needs_masters() ? 1 : 0) << name;
  }
}

}  // namespace
}  // namespace troika::train
