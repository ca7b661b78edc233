// Whole runs on the pretend device: with every strategy, they equal the CPU's.
#include <gmock/gmock.h>

#include "tests/pretend_device/pretend_device.h"
#include "tests/support/errors.h"
#include "tests/train/resumed_run.h"
#include "troika/nn/state.h"
#include "troika/train/engine/placement.h"
#include "troika/train/run/run_plan.h"
#include "troika/train/task/replicated_task.h"

namespace troika::pretend {
namespace {

using checkpoint::NamedTensors;
using checkpoint::RankState;

// Expects equal tensors up to `within`, relative to the largest number of a tensor. Returns the
// largest difference.
double expect_close(const NamedTensors& own, const NamedTensors& oracle, double within = 1e-6) {
  double most = 0;
  EXPECT_EQ(own.size(), oracle.size());
  if (own.size() != oracle.size()) return most;
  for (size_t i = 0; i < own.size(); ++i) {
    const auto& [name, expected] = oracle[i];
    EXPECT_EQ(own[i].first, name);
    if (train::is_measured(name) || name.starts_with("random.")) continue;
    if (!at::isFloatingType(expected.scalar_type()) || expected.numel() == 0) continue;
    const double largest = expected.abs().max().item<double>();
    const double difference = (own[i].second - expected).abs().max().item<double>();
    EXPECT_LE(difference, within * std::max(1.0, largest)) << name;
    most = std::max(most, difference);
  }
  return most;
}

struct Case {
  const char* strategy;
  const char* optimizer;
  const char* recompute = "none";
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.strategy << "_" << c.optimizer << "_recompute_" << c.recompute;
}

class Training : public train::ResumedRun {
 protected:
  Training() {
    options_.trainer.max_epochs = 2;
    options_.comm.bucket_megabytes = 1e-4;
    // The gradient of the bias before the batch norm consists only of rounding errors, which
    // adaptive methods would amplify.
    options_.optimizer.eps = 1;
    options_.local_sgd = {.period = 2, .warmup_steps = 3};
    options_.diloco.inner_steps = 3;
  }

  // Runs on the pretend device and on the CPU, and expects equal results.
  void expect_the_cpus(int ranks) {
    options_.trainer.accelerator = "cpu";
    const auto oracle = fit(options_, ranks);
    auto options = options_;
    options.trainer.accelerator = "gpu";
    options.run.folder = (folder_ / "device").string();
    reset_counts();
    const auto own = fit(options, ranks);
    EXPECT_GT(counts().enqueued, 1000) << "it computed elsewhere";
    for (size_t r = 0; r < own.size(); ++r) {
      SCOPED_TRACE(r);
      expect_close(own[r].model, oracle[r].model);
    }
  }
};

class Strategies : public Training, public testing::WithParamInterface<Case> {};

TEST_P(Strategies, AreTheCpus) {
  const Case& c = GetParam();
  options_.trainer.strategy = c.strategy;
  options_.trainer.recompute = c.recompute;
  options_.optimizer.name = c.optimizer;
  options_.optimizer.weight_decay = 0.01;
  expect_the_cpus(2);
}

INSTANTIATE_TEST_SUITE_P(OnTwoRanks, Strategies,
                         testing::Values(Case{"ddp", "sgd"}, Case{"ddp", "adamw"},
                                         Case{"zero1", "adamw"}, Case{"zero2", "sgd"},
                                         Case{"zero2", "adamw"}, Case{"zero3", "sgd"},
                                         Case{"zero3", "adamw"}, Case{"ddp", "lamb"},
                                         Case{"zero2", "adagrad"}, Case{"local_sgd", "sgd"},
                                         Case{"post_local_sgd", "adamw"}, Case{"diloco", "adamw"},
                                         Case{"ddp", "adamw", "full"},
                                         Case{"zero3", "adamw", "full"}),
                         testing::PrintToStringParamName());

TEST_F(Training, ClippingAndAccumulationAreTheCpus) {
  options_.trainer.accumulate_grad_batches = 2;
  options_.trainer.gradient_clip_val = 0.1;
  expect_the_cpus(2);
}

// Averages would not reach the masters, which overwrite the parameters.
TEST_F(Training, LocalStepsNeedAnOptimizerThatStepsOnTheDevice) {
  options_.trainer.strategy = "local_sgd";
  options_.trainer.accelerator = "gpu";
  options_.optimizer.name = "lamb";
  EXPECT_ERROR(fit(options_, 1), ErrorKind::usage,
               "[train] strategy local_sgd averages weights between steps of single ranks; got an "
               "optimizer that steps masters on the host, expected one that steps on the device "
               "(sgd, adam, adamw and adagrad do, without offload.optimizer)");
}

// Each replica on a device of its own.
TEST_F(Training, ReplicasInThreadsAreTheCpus) {
  dropout_ = 0.3;
  options_.trainer.strategy = "dp";
  options_.trainer.devices = 2;
  const auto weights = [&](const std::string& accelerator) {
    options_.trainer.accelerator = accelerator;
    options_.run.folder = (folder_ / accelerator).string();
    const auto make = [&] {
      return std::make_shared<train::Task>(train::make_waves_model(width_, dropout_));
    };
    const std::vector replicas{make(), make()};
    train::ReplicatedTask task(replicas);
    const train::Waves waves;
    train::Trainer trainer(options_, comm::local::alone());
    EXPECT_EQ(trainer.fit(task, waves, waves).status, "finished");
    const auto second = replicas[1]->module().parameters()[0].device();
    EXPECT_EQ(second, accelerator == "cpu" ? c10::Device(c10::kCPU) : device(1));
    NamedTensors result;
    for (const auto& [name, tensor] : nn::named_state(task.module())) {
      result.emplace_back(name, tensor.cpu());
    }
    return result;
  };
  const auto oracle = weights("cpu");
  expect_close(weights("gpu"), oracle);
}

TEST_F(Training, ReplicasInThreadsNeedADeviceEach) {
  options_.trainer.strategy = "dp";
  options_.trainer.devices = kDevices + 1;
  options_.trainer.accelerator = "gpu";
  EXPECT_ERROR(train::Placement::of(options_, comm::local::alone()), ErrorKind::usage,
               "[train] trainer.accelerator gpu cannot be had; got 4 GPUs for 5 replicas of rank 0 "
               "of this machine, expected one for each replica (trainer.devices replicas in all "
               "processes of a machine take as many GPUs)");
  options_.trainer.accelerator = "auto";
  EXPECT_TRUE(train::Placement::of(options_, comm::local::alone()).device.is_cpu());
}

TEST_F(Training, DropoutDrawsFromTheDevice) {
  dropout_ = 0.3;
  expect_the_cpus(1);
}

TEST_F(Training, RecomputationDrawsAgainFromTheDevice) {
  dropout_ = 0.3;
  options_.trainer.recompute = "full";
  expect_the_cpus(1);
}

TEST_F(Training, OffloadedActivationsAreTheCpus) {
  width_ = 5000;  // more than stays on the device
  options_.optimizer.lr = 1e-3;
  const auto oracle = fit(options_, 1);
  options_.trainer.accelerator = "gpu";
  options_.offload.activations = "host";
  options_.run.folder = (folder_ / "device").string();
  expect_close(fit(options_, 1)[0].model, oracle[0].model);
}

// The CPU has no float16 in LibTorch 1.13, so its float32 is the oracle.
TEST_F(Training, HalfPrecisionWithScaledLossesIsCloseToTheCpus) {
  const auto oracle = fit(options_, 2);
  options_.trainer.accelerator = "gpu";
  options_.trainer.precision = "16-mixed";
  options_.run.folder = (folder_ / "device").string();
  const auto own = fit(options_, 2);
  for (size_t r = 0; r < own.size(); ++r) {
    EXPECT_GT(expect_close(own[r].model, oracle[r].model, 1e-2), 1e-5) << "nothing was rounded";
    EXPECT_THAT(own[r].rest, testing::Contains(testing::Field(&NamedTensors::value_type::first,
                                                              "optimizer.scaler.scale")));
  }
}

// A product of the model overflows in float16, though not in float32: the scaler lowers the scale
// until it does not, and skips the steps before.
TEST_F(Training, StepsThatOverflowInHalfPrecisionAreSkipped) {
  options_.trainer.accelerator = "gpu";
  options_.trainer.precision = "16-mixed";
  width_ = 2000;
  const auto own = fit(options_, 2);
  const auto scale =
      std::ranges::find(own[0].rest, "optimizer.scaler.scale", &NamedTensors::value_type::first);
  ASSERT_NE(scale, own[0].rest.end());
  EXPECT_LT(scale->second.item<double>(), 65536);
  for (const auto& [name, tensor] : own[0].model) {
    if (!at::isFloatingType(tensor.scalar_type())) continue;
    EXPECT_TRUE(tensor.isfinite().all().item<bool>()) << name;
  }
}

TEST_F(Training, GoesOnFromACheckpointToTheBit) {
  dropout_ = 0.3;
  options_.trainer.accelerator = "gpu";
  const auto whole = fit(options_, 1);
  EXPECT_THAT(whole[0].rest, testing::Contains(testing::Field(&NamedTensors::value_type::first,
                                                              "random.privateuseone")));
  expect_exact(whole, "stopped", [](const train::CountingTask&, int) -> train::StopQuestion {
    return [micro_batches = 0]() mutable {
      return ++micro_batches >= 4 ? cluster::StopRequest::save_and_stop
                                  : cluster::StopRequest::none;
    };
  });
}

TEST_F(Training, ShardsGoOnFromACheckpointToTheBit) {
  options_.trainer.accelerator = "gpu";
  options_.trainer.strategy = "zero3";
  const auto whole = fit(options_, 2);
  expect_exact(whole, "stopped", [](const train::CountingTask&, int) -> train::StopQuestion {
    return [micro_batches = 0]() mutable {
      return ++micro_batches >= 1 ? cluster::StopRequest::save_and_stop
                                  : cluster::StopRequest::none;
    };
  });
}

// A checkpoint does not depend on the device.
TEST_F(Training, TheCpuGoesOnFromACheckpointOfTheDevice) {
  options_.trainer.accelerator = "cpu";
  const auto oracle = fit(options_, 1);
  auto options = options_;
  options.trainer.accelerator = "gpu";
  options.run.folder = (folder_ / "device").string();
  options.trainer.ckpt_path = "last";
  fit(options, 1, [](const train::CountingTask&, int) -> train::StopQuestion {
    return [micro_batches = 0]() mutable {
      return ++micro_batches >= 5 ? cluster::StopRequest::save_and_stop
                                  : cluster::StopRequest::none;
    };
  });
  options.trainer.accelerator = "cpu";
  expect_close(fit(options, 1)[0].model, oracle[0].model);
}

}  // namespace
}  // namespace troika::pretend
