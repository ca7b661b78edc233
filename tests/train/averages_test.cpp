// Averages of weights, each against a plain loop over the weights of the run it accompanied.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <map>

#include "tests/support/errors.h"
#include "tests/train/waves.h"
#include "troika/base/temporary_folder.h"
#include "troika/comm/local/local.h"
#include "troika/compat/torch.h"
#include "troika/nn/state.h"
#include "troika/train/callbacks/ema.h"
#include "troika/train/callbacks/swa.h"
#include "troika/train/checkpoint/checkpoint.h"
#include "troika/train/checkpoint/resume.h"
#include "troika/train/fit_context.h"
#include "troika/train/replicated_task.h"
#include "troika/train/trainer.h"

namespace troika::train {
namespace {

using State = std::map<std::string, at::Tensor>;

State copy_of(const torch::nn::Module& module) {
  State result;
  for (const auto& item : nn::named_state(module)) {
    result[item.name] = item.tensor.detach().clone();
  }
  return result;
}

void expect_close(const State& a, const State& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    EXPECT_TRUE(tensor.to(at::kDouble).allclose(b.at(name).to(at::kDouble), 1e-9, 1e-11)) << name;
  }
}

void expect_same(const State& a, const State& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) EXPECT_TRUE(tensor.equal(b.at(name))) << name;
}

// What the module was at turns of a run; added after the callbacks of the options.
class Watching : public Callback {
 public:
  std::string name() const override { return "watching"; }
  void on_before_optimizer_step(FitContext& c) override { rates.push_back(c.learning_rate); }
  void on_train_batch_end(FitContext& c, const data::Batch&, double) override {
    // After steps, zero3 has no whole parameters.
    if (sees_steps) after_steps.push_back(copy_of(c.task.module()));
  }
  void on_validation_epoch_start(FitContext& c) override {
    validated.push_back(copy_of(c.task.module()));
  }
  void on_train_epoch_end(FitContext& c) override {
    after_epochs.push_back(copy_of(c.task.module()));
  }

  bool sees_steps = true;
  std::vector<double> rates;
  std::vector<State> after_steps, after_epochs, validated;
};

class Averages : public testing::Test {
 protected:
  Averages() {
    options_.run.folder = folder_.path().string();
    options_.trainer.precision = "64";
    options_.trainer.max_epochs = 3;
    options_.trainer.sync_batchnorm = true;
    options_.trainer.enable_progress_bar = false;
    options_.data.global_batch_size = 6;  // 4 steps an epoch
    options_.optimizer.momentum = 0.9;
    options_.comm.bucket_megabytes = 1e-2;
  }

  // The module of the last rank when fit() has returned.
  State fit(const TrainOptions& options, int ranks,
            const std::shared_ptr<Callback>& of_last_rank = nullptr) const {
    State result;
    comm::local::run(ranks, [&](comm::Group group) {
      const auto task = make_waves_task(width_, 0);
      Trainer trainer(options, group);
      const bool is_last = group.rank() + 1 == group.size();
      if (is_last && of_last_rank) trainer.add(of_last_rank);
      trainer.fit(*task, Waves(), Waves());
      if (is_last) result = copy_of(task->module());
    });
    return result;
  }
  State saved(const TrainOptions& options) const {
    const auto list = load_weights(std::filesystem::path(options.run.folder) / "run" /
                                   "checkpoints/last.safetensors");
    return {list.begin(), list.end()};
  }

  const TemporaryFolder folder_;
  TrainOptions options_;
  int64_t width_ = 8;
};

// Steps counted from 0: those numbers of `from` on that `every` divides.
State mean_by_hand(const std::vector<State>& after_steps, double decay, size_t from, size_t every,
                   bool with_buffers) {
  State mean;
  for (size_t step = from; step < after_steps.size(); ++step) {
    if (step % every != 0) continue;
    for (const auto& [name, now] : after_steps[step]) {
      const bool is_buffer = name.starts_with("1.running") || name.starts_with("1.num");
      if (mean[name].defined() && now.is_floating_point() && (with_buffers || !is_buffer)) {
        mean[name] = decay * mean[name] + (1 - decay) * now;
      } else {
        mean[name] = now;
      }
    }
  }
  return mean;
}

struct Where {
  std::string strategy;
  int ranks;
};

TEST_F(Averages, EmaIsThatOfAPlainLoopUnderEveryStrategy) {
  width_ = 2600;  // parameters that zero3 releases
  const auto watching = std::make_shared<Watching>();
  fit(options_, 1, watching);
  ASSERT_EQ(watching->after_steps.size(), 12u);
  const auto plain = saved(options_);
  const auto expected = mean_by_hand(watching->after_steps, 0.8, 3, 2, true);
  auto options = options_;
  options.ema = {
      .enabled = true, .decay = 0.8, .update_every_n_steps = 2, .update_starting_at_step = 3};
  for (const auto& [strategy, ranks] : {Where{"ddp", 1},
                                        {"ddp", 2},
                                        {"ddp", 3},
                                        {"zero1", 2},
                                        {"zero2", 3},
                                        {"zero3", 2},
                                        {"zero3", 3}}) {
    SCOPED_TRACE(fmt::format("{} on {}", strategy, ranks));
    options.trainer.strategy = strategy;
    expect_close(fit(options, ranks), expected);
    expect_close(saved(options), plain);
  }
}

TEST_F(Averages, EmaIsValidatedAndTakenBackToTheBit) {
  for (const auto& [strategy, ranks] : {Where{"ddp", 1}, {"zero3", 2}}) {
    SCOPED_TRACE(strategy);
    options_.trainer.strategy = strategy;
    fit(options_, ranks);
    const auto plain = saved(options_);
    auto options = options_;
    options.ema = {.enabled = true, .decay = 0.5};
    options.trainer.val_check_interval = "2";
    const auto watching = std::make_shared<Watching>();
    watching->sees_steps = ranks == 1;
    fit(options, ranks, watching);
    expect_same(saved(options), plain);
    if (ranks > 1) continue;
    ASSERT_EQ(watching->validated.size(), 6u);
    for (size_t i = 0; i < 6; ++i) {
      const auto& steps = watching->after_steps;
      const std::vector<State> so_far(steps.begin(), steps.begin() + 2 * static_cast<int>(i) + 2);
      expect_close(watching->validated[i], mean_by_hand(so_far, 0.5, 0, 1, true));
    }
  }
}

TEST_F(Averages, EmaMayLeaveBuffersAsTheyAre) {
  options_.ema = {.enabled = true, .decay = 0.5, .use_buffers = false};
  const auto watching = std::make_shared<Watching>();
  const auto result = fit(options_, 2, watching);
  expect_close(result, mean_by_hand(watching->after_steps, 0.5, 0, 1, false));
}

TEST_F(Averages, EmaOfHalfPrecisionIsOfItsMasters) {
  options_.trainer.precision = "bf16-true";
  options_.ema = {.enabled = true};
  fit(options_, 1);
  for (const auto& [name, tensor] : averaged_weights(folder_ / "run/checkpoints/last")) {
    if (name.ends_with("weight")) {
      EXPECT_EQ(tensor.scalar_type(), at::kFloat);
      EXPECT_FALSE(tensor.equal(tensor.to(at::kBFloat16).to(at::kFloat))) << name;
    }
  }
}

TEST_F(Averages, EmaGoesOnOnOtherRanksAndStrategies) {
  options_.schedule.name = "constant";
  const auto watching = std::make_shared<Watching>();
  fit(options_, 1, watching);
  const auto expected = mean_by_hand(watching->after_steps, 0.8, 0, 1, true);
  options_.run.folder = (folder_ / "moved").string();
  options_.ema = {.enabled = true, .decay = 0.8};
  options_.trainer.strategy = "zero2";
  options_.trainer.max_steps = 5;
  options_.checkpoint.every_n_train_steps = 5;
  fit(options_, 3);
  options_.trainer.strategy = "ddp";
  options_.trainer.max_steps = -1;
  options_.trainer.ckpt_path = "last";
  expect_close(fit(options_, 2), expected);
  const auto averaged = averaged_weights(folder_ / "moved/run/checkpoints/last");
  expect_close({averaged.begin(), averaged.end()}, expected);
}

TEST_F(Averages, AnEmaMayAccompanySeveralRuns) {
  const auto ema = std::make_shared<Ema>(TrainOptions::Ema{.enabled = true, .decay = 0.8});
  const auto first = fit(options_, 1, ema);
  expect_same(fit(options_, 1, ema), first);
}

TEST_F(Averages, AreExportedByTheNameOfAFileToo) {
  options_.ema.enabled = true;
  fit(options_, 1);
  const auto checkpoints = folder_ / "run/checkpoints";
  const auto expected = averaged_weights(checkpoints / "last");
  for (const char* name : {"last.safetensors", "last/model.safetensors"}) {
    const auto found = averaged_weights(checkpoints / name);
    expect_same({found.begin(), found.end()}, {expected.begin(), expected.end()});
  }
}

TEST_F(Averages, EmaRefusesWeightsThatDifferBetweenRanks) {
  options_.ema.enabled = true;
  options_.trainer.strategy = "post_local_sgd";
  EXPECT_ERROR(fit(options_, 2), ErrorKind::usage,
               "[train] ema averages weights that are the same on all ranks after each step; got "
               "strategy post_local_sgd, expected ddp, zero1, zero2 or zero3 (swa averages at the "
               "end of epochs)");
  options_.trainer.strategy = "ddp";
  options_.ddp.broadcast_buffers = false;
  EXPECT_ERROR(fit(options_, 2), ErrorKind::usage,
               "[train] ema averages buffers that are the same on all ranks; got "
               "ddp.broadcast_buffers false, expected true, or ema.use_buffers false");
}

TEST_F(Averages, OfACheckpointWithoutOneAreRefused) {
  fit(options_, 1);
  EXPECT_ERROR(
      averaged_weights(folder_ / "run/checkpoints/last"), ErrorKind::usage,
      "[train] " + (folder_ / "run/checkpoints/last").string() +
          " has no averaged weights; got a run without ema.enabled, or with no update yet");
}

class SwaRun : public Averages {
 protected:
  SwaRun() {
    options_.trainer.max_epochs = 5;
    options_.swa = {.swa_lrs = 0.02, .swa_epoch_start = "2", .annealing_epochs = 2};
    options_.data.global_batch_size = 26;  // one step an epoch, of all samples
    options_.schedule.name = "constant";
  }
};

TEST_F(SwaRun, IsTheMeanOfTheWeightsOfLastEpochsUnderEveryStrategy) {
  width_ = 2600;
  for (const auto& [strategy, ranks] :
       {Where{"ddp", 1}, {"ddp", 2}, {"zero2", 2}, {"zero3", 2}, {"local_sgd", 2}}) {
    SCOPED_TRACE(fmt::format("{} on {}", strategy, ranks));
    options_.trainer.strategy = strategy;
    const auto watching = std::make_shared<Watching>();
    watching->sees_steps = false;
    const auto result = fit(options_, ranks, watching);
    ASSERT_EQ(watching->after_epochs.size(), 5u);
    State expected;
    for (const auto& [name, tensor] : watching->after_epochs[2]) {
      expected[name] =
          (tensor + watching->after_epochs[3].at(name) + watching->after_epochs[4].at(name)) / 3;
    }
    // The whole epoch is one batch: what goes into the norm, by hand.
    const auto inputs =
        Waves()
            .load(std::vector<int64_t>{0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12,
                                       13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25},
                  {})
            .inputs.to(at::kDouble);
    const auto normed = at::linear(inputs, expected.at("0.weight"), expected.at("0.bias"));
    expected["1.running_mean"] = normed.mean(0);
    expected["1.running_var"] = normed.var(0);
    expected["1.num_batches_tracked"] = at::scalar_tensor(1, at::kLong);
    expect_close(result, expected);
    const auto file = load_safetensors(folder_ / "run/checkpoints/swa.safetensors");
    expect_same({file.begin(), file.end()}, result);
  }
}

TEST_F(SwaRun, AnnealsTheRateEpochByEpoch) {
  const auto rates = [&] {
    const auto watching = std::make_shared<Watching>();
    fit(options_, 2, watching);
    return watching->rates;
  };
  using testing::DoubleNear;
  using testing::ElementsAre;
  const auto near = [](double rate) { return DoubleNear(rate, 1e-15); };
  options_.swa.annealing_epochs = 3;
  const double a = 0.1, b = 0.02;
  EXPECT_THAT(rates(),
              ElementsAre(a, a, near(a), near(b * 0.25 + a * 0.75), near(b * 0.75 + a * 0.25)));
  options_.swa.annealing_strategy = "linear";
  options_.swa.annealing_epochs = 2;
  EXPECT_THAT(rates(), ElementsAre(a, a, near(a), near((a + b) / 2), near(b)));
  options_.swa.annealing_epochs = 0;
  options_.swa.swa_epoch_start = "0.8";
  EXPECT_THAT(rates(), ElementsAre(a, a, a, a, near(b)));
}

TEST_F(SwaRun, RefusesWhatLeavesNothingToAverage) {
  options_.swa.swa_epoch_start = "5";
  EXPECT_ERROR(fit(options_, 1), ErrorKind::usage,
               "[train] swa.swa_epoch_start leaves no epoch to average; got 5, expected less than "
               "trainer.max_epochs, 5");
  options_.swa.swa_epoch_start = "1.5";
  EXPECT_ERROR(fit(options_, 1), ErrorKind::usage,
               "[train] swa.swa_epoch_start makes no sense; got 1.5, expected an epoch as 8, or a "
               "share of trainer.max_epochs as 0.8");
  options_.swa.swa_epoch_start = "2";
  options_.trainer.strategy = "dp";
  options_.trainer.devices = 2;
  options_.trainer.sync_batchnorm = false;
  ReplicatedTask task({make_waves_task(8, 0), make_waves_task(8, 0)});
  EXPECT_ERROR(Trainer(options_, comm::local::alone()).fit(task, Waves(), Waves()),
               ErrorKind::usage,
               "[train] swa makes the statistics of batch norms anew; got strategy dp, whose "
               "threads each see a part of a batch, expected a strategy of processes");
}

}  // namespace
}  // namespace troika::train
