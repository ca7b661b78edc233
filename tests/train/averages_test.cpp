// Averages of weights, each against a plain loop over the weights of the same run.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/support/errors.h"
#include "tests/train/averages.h"
#include "troika/checkpoint/resume.h"
#include "troika/train/callbacks/ema.h"

namespace troika::train {
namespace {

// Averages the steps from `from` on whose number, counted from 0, is a multiple of `every`.
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
    expect_close(saved(options), expected);
    expect_close(raw(options), plain);
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
    expect_same(raw(options), plain);
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
  for (const auto& [name, tensor] : saved(options_)) {
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
  expect_close(saved(options_), expected);
}

TEST_F(Averages, AnEmaMayAccompanySeveralRuns) {
  const auto ema = std::make_shared<Ema>(EmaOptions{.enabled = true, .decay = 0.8});
  const auto first = fit(options_, 1, ema);
  expect_same(fit(options_, 1, ema), first);
}

// The best checkpoint has the weights that were validated, bit for bit.
TEST_F(Averages, TheBestCheckpointGivesTheMetricsThatItWasChosenBy) {
  class Losses : public Callback {
   public:
    std::string name() const override { return "losses"; }
    void on_checkpoint(FitContext& context, const std::filesystem::path& checkpoint) override {
      losses[checkpoint.filename()] = {context.at.validation_loss, context.at.validation_accuracy};
    }
    std::map<std::string, std::pair<double, double>> losses;
  };
  width_ = 2600;  // parameters that zero3 releases
  options_.ema = {.enabled = true, .decay = 0.8};
  options_.checkpoint.monitor = "validation/loss";
  options_.optimizer.lr = 0.5;
  options_.data.global_batch_size = 12;
  for (const bool use_buffers : {true, false}) {
    for (const auto& [strategy, ranks, precision] : {std::tuple("ddp", 1, "32"),
                                                     {"ddp", 4, "32"},
                                                     {"ddp", 2, "bf16-true"},
                                                     {"zero1", 4, "32"},
                                                     {"zero2", 3, "bf16-true"},
                                                     {"zero3", 4, "64"}}) {
      SCOPED_TRACE(
          fmt::format("{} on {}, {}, buffers {}", strategy, ranks, precision, use_buffers));
      std::filesystem::remove_all(folder_ / "run");
      options_.ema.use_buffers = use_buffers;
      options_.trainer.strategy = strategy;
      options_.trainer.precision = precision;
      const auto losses = std::make_shared<Losses>();
      fit(options_, ranks, losses);
      for (const std::string ckpt : {"best", "last"}) {
        const auto folder = std::filesystem::read_symlink(folder_ / "run/checkpoints" / ckpt);
        const auto [loss, accuracy] = losses->losses.at(folder);
        comm::local::run(ranks, [&](comm::Group group) {
          const auto task = make_waves_task(width_, 0);
          Trainer trainer(options_, group);
          const auto validated = trainer.validate(*task, Waves(), ckpt);
          EXPECT_EQ(validated.at(0), std::pair(std::string("validation/loss"), loss)) << ckpt;
          EXPECT_EQ(validated.at(1), std::pair(std::string("validation/accuracy"), accuracy));
          const auto tested = trainer.test(*task, Waves(), ckpt);
          EXPECT_EQ(tested.at(0).second, loss);
        });
      }
    }
  }
}

TEST_F(Averages, OfACheckpointOfWeightsAloneAreItsModel) {
  options_.ema = {.enabled = true, .decay = 0.8};
  const auto average = fit(options_, 2);
  options_.checkpoint.weights_only = true;
  std::filesystem::remove_all(folder_ / "run");
  fit(options_, 2);
  expect_same(saved(options_), average);
  EXPECT_TRUE(checkpoint::CheckpointReader(last(options_), 0).names(kRawPrefix).empty());
}

TEST_F(Averages, AResumedEmaGoesOnToTheBit) {
  options_.schedule.name = "constant";
  options_.data.global_batch_size = 8;  // 3 steps an epoch
  options_.comm.algorithm = "ring";     // whatever the links measure
  options_.ema = {.enabled = true, .decay = 0.8};
  for (const auto& [strategy, ranks] : {Where{"ddp", 4}, {"zero2", 4}, {"zero3", 4}}) {
    SCOPED_TRACE(strategy);
    auto whole = options_;
    whole.trainer.strategy = strategy;
    whole.run.folder = (folder_ / strategy / "whole").string();
    const auto average = fit(whole, ranks);
    auto part = whole;
    part.run.folder = (folder_ / strategy / "part").string();
    part.trainer.max_steps = 5;  // in the second epoch
    fit(part, ranks);
    part.trainer.max_steps = -1;
    part.trainer.ckpt_path = "last";
    expect_same(fit(part, ranks), average);
    expect_same(saved(part), saved(whole));
    expect_same(raw(part), raw(whole));
  }
}

TEST_F(Averages, EmaOfBuffersBeginsWhereAResumedRunSwitchesItOn) {
  options_.schedule.name = "constant";
  options_.data.global_batch_size = 12;  // 2 steps an epoch
  for (const bool use_buffers : {true, false}) {
    SCOPED_TRACE(use_buffers);
    auto options = options_;
    options.run.folder = (folder_ / (use_buffers ? "on" : "off")).string();
    options.ema = {.enabled = true, .decay = 0.5, .use_buffers = !use_buffers};
    options.trainer.max_epochs = 1;
    const auto before = std::make_shared<Watching>(), after = std::make_shared<Watching>();
    fit(options, 4, before);
    options.ema.use_buffers = use_buffers;
    options.trainer.max_epochs = 3;
    options.trainer.ckpt_path = "last";
    const auto average = fit(options, 4, after);
    auto steps = before->after_steps;
    steps.insert(steps.end(), after->after_steps.begin(), after->after_steps.end());
    auto expected = mean_by_hand(steps, 0.5, 0, 1, false);
    if (use_buffers) {
      std::vector<State> since{before->after_steps.back()};
      since.insert(since.end(), after->after_steps.begin(), after->after_steps.end());
      const auto buffers = mean_by_hand(since, 0.5, 0, 1, true);
      for (auto& [name, tensor] : expected) {
        if (name.starts_with("1.running") || name.starts_with("1.num")) tensor = buffers.at(name);
      }
    }
    expect_close(average, expected);
    expect_close(saved(options), expected);
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

}  // namespace
}  // namespace troika::train
