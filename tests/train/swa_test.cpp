// The mean of the weights of the last epochs (SWA), against a mean computed by hand.
#include "troika/train/callbacks/swa.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/support/errors.h"
#include "tests/train/averages.h"
#include "troika/train/task/replicated_task.h"

namespace troika::train {
namespace {

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
    // The whole epoch is one batch, so the input of the norm can be computed by hand.
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
    const auto file = checkpoint::load_safetensors(folder_ / "run/checkpoints/swa.safetensors");
    expect_same({file.begin(), file.end()}, result);
  }
}

// Each callback averages the trained weights; at the end, the module has the mean of the last
// epochs.
TEST_F(SwaRun, IsNotThatOfAnEma) {
  options_.data.global_batch_size = 24;
  for (const auto& [strategy, ranks] : {Where{"ddp", 1}, {"ddp", 4}, {"zero3", 4}}) {
    SCOPED_TRACE(strategy);
    options_.trainer.strategy = strategy;
    options_.ema.enabled = false;
    const auto mean = fit(options_, ranks);
    const auto trained = saved(options_);
    options_.ema = {.enabled = true, .decay = 0.5};
    expect_close(fit(options_, ranks), mean);
    const auto file = checkpoint::load_safetensors(folder_ / "run/checkpoints/swa.safetensors");
    expect_close({file.begin(), file.end()}, mean);
    expect_close(raw(options_), trained);
    EXPECT_FALSE(saved(options_).at("0.weight").equal(trained.at("0.weight"))) << "the EMA";
  }
}

// The mean is in the module by then.
TEST_F(SwaRun, ARunGoesOnFromACheckpointThatWasSavedAfterFit) {
  width_ = 2600;
  options_.data.global_batch_size = 12;
  options_.comm.algorithm = "ring";  // whatever the links measure
  for (const auto& [strategy, ranks, has_ema] :
       {std::tuple("ddp", 4, false), {"ddp", 4, true}, {"zero3", 4, false}, {"zero3", 4, true}}) {
    SCOPED_TRACE(fmt::format("{} ema {}", strategy, has_ema));
    options_.trainer.strategy = strategy;
    options_.ema = {.enabled = has_ema, .decay = 0.5};
    options_.run.folder = (folder_ / fmt::format("{}-{}", strategy, has_ema)).string();
    const auto ended = folder_ / fmt::format("{}-{}-ended", strategy, has_ema);
    auto options = options_;
    const auto mean = fit(options, ranks, nullptr, [&](Trainer& trainer) {
      trainer.save_checkpoint(ended / "whole");
      trainer.save_checkpoint(ended / "weights", /*weights_only=*/true);
    });
    const auto average = saved(options);
    for (const char* name : {"whole", "weights"}) {
      const auto list = checkpoint::load_weights(ended / name);
      expect_same({list.begin(), list.end()}, has_ema ? average : mean);
    }
    options.trainer.max_epochs = 7;
    options.trainer.ckpt_path = "last";
    const auto expected = fit(options, ranks);
    const auto expected_raw = raw(options);
    options.trainer.ckpt_path = (ended / "whole").string();
    expect_same(fit(options, ranks), expected);
    expect_same(raw(options), expected_raw);
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
               "[train] swa.swa_epoch_start makes no sense; got 1.5, expected an epoch, for "
               "example 8, or a fraction of trainer.max_epochs, for example 0.8");
  options_.swa.swa_epoch_start = "2";
  options_.trainer.strategy = "dp";
  options_.trainer.devices = 2;
  options_.trainer.sync_batchnorm = false;
  ReplicatedTask task({make_waves_task(8, 0), make_waves_task(8, 0)});
  EXPECT_ERROR(Trainer(options_, comm::local::alone()).fit(task, Waves(), Waves()),
               ErrorKind::usage,
               "[train] swa recomputes the statistics of batch norms; got strategy dp, whose "
               "threads each see a part of a batch, expected a strategy of processes");
}

}  // namespace
}  // namespace troika::train
