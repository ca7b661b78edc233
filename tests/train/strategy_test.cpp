// Strategies by a user's options, each compared with one process.
#include "troika/base/config.h"
#include "troika/train/options/resolve_plan.h"

#include <gmock/gmock.h>

#include <map>

#include "tests/support/errors.h"
#include "tests/train/fitted_course.h"
#include "tests/train/waves.h"
#include "troika/comm/local/local.h"
#include "troika/nn/sequential.h"
#include "troika/train/engine/make_exchange.h"
#include "troika/train/task/replicated_task.h"

namespace troika::train {
namespace {

// 26 points whose class is the sign of a function of their number.
class Points : public data::Dataset {
 public:
  int64_t size() const override { return 26; }
  data::Batch load(std::span<const int64_t> indices, std::optional<uint64_t>) const override {
    const auto numbers = at::tensor(std::vector<int64_t>(indices.begin(), indices.end()));
    const auto angles = numbers.to(at::kDouble).unsqueeze(1) * at::tensor({0.7, 1.3, 2.9});
    return {at::sin(angles), at::sin(angles.sum(1)).gt(0).to(at::kLong)};
  }
  int64_t num_classes() const override { return 2; }
  std::vector<int64_t> input_shape() const override { return {3}; }
};

std::shared_ptr<Task> make_points_task() {
  auto net =
      torch::nn::Sequential(torch::nn::Linear(3, 8), torch::nn::Tanh(), torch::nn::Linear(8, 2));
  fill_with_waves(*net);
  return std::make_shared<Task>(nn::from_sequential(net));
}

std::shared_ptr<Task> make_replicas(int64_t count) {
  std::vector<std::shared_ptr<Task>> tasks;
  for (int64_t i = 0; i < count; ++i) tasks.push_back(make_points_task());
  return std::make_shared<ReplicatedTask>(tasks);
}

class Strategies : public CourseTest {
 protected:
  Strategies() { options_.comm.bucket_megabytes = 1e-4; }

  // Returns the course of rank 0.
  static FittedCourse fit(const TrainOptions& options, int ranks,
                          const std::function<std::shared_ptr<Task>()>& make = make_points_task) {
    return fit(options, std::vector<int>(static_cast<size_t>(ranks), 0), make);
  }
  // The same with the machine of each rank.
  static FittedCourse fit(const TrainOptions& options, const std::vector<int>& machines,
                          const std::function<std::shared_ptr<Task>()>& make) {
    return fit_course(options, machines, make, Points());
  }
};

// An epoch has 6 batches of 4 samples. With two passes per step, it has 3 steps of 8 samples. These
// equal the batches of a batch size of 8, because both follow the sampler's order.
TEST_F(Strategies, AccumulatedBatchesAreOneLargeBatch) {
  auto accumulated = options_;
  accumulated.trainer.accumulate_grad_batches = 2;
  auto large = options_;
  large.data.global_batch_size = 8;
  const auto oracle = fit(large, 1);
  EXPECT_EQ(oracle.summary.steps, 6);
  for (const int ranks : {1, 2}) {
    const auto course = fit(accumulated, ranks);
    EXPECT_EQ(course.summary.steps, 6);
    EXPECT_EQ(course.summary.samples, 48);
    EXPECT_LT(distance(course, oracle), 1e-12);
  }
}

TEST_F(Strategies, TheLastStepOfAnEpochMayHaveFewerPasses) {
  auto options = options_;
  options.trainer.accumulate_grad_batches = 4;
  const auto course = fit(options, 2);
  EXPECT_EQ(course.summary.steps, 4) << "6 batches make a step of 4 and one of 2";
  EXPECT_EQ(course.summary.samples, 48);
  EXPECT_LT(distance(course, fit(options, 1)), 1e-12);
  options.trainer.max_steps = 3;
  EXPECT_EQ(fit(options, 1).summary.samples, 40);
}

// With plain SGD, the sum of two passes at half the rate equals their mean at the whole rate.
TEST_F(Strategies, HorovodSumsPassesAndAveragesRanks) {
  auto horovod = options_;
  horovod.trainer.strategy = "horovod";
  horovod.horovod.backward_passes_per_step = 2;
  auto mean = options_;
  mean.trainer.accumulate_grad_batches = 2;
  const auto oracle = fit(mean, 1);
  EXPECT_GT(distance(fit(horovod, 2), oracle), 1e-3);
  horovod.optimizer.lr = mean.optimizer.lr / 2;
  EXPECT_LT(distance(fit(horovod, 2), oracle), 1e-12);
  horovod.optimizer.lr = mean.optimizer.lr;
  horovod.horovod.average_aggregated_gradients = true;
  EXPECT_LT(distance(fit(horovod, 2), oracle), 1e-12);
  horovod.trainer.accumulate_grad_batches = 2;
  EXPECT_ERROR(resolve_plan(horovod, layout::Cluster::uniform(1, 2)), ErrorKind::usage,
               "[train] trainer.accumulate_grad_batches and horovod.backward_passes_per_step both "
               "accumulate; got 2 and 2, expected one of them above 1");
}

TEST_F(Strategies, ClippingIsOfTheMeanGradient) {
  const auto free = fit(options_, 1);
  for (const char* algorithm : {"norm", "value"}) {
    auto clipped = options_;
    clipped.trainer.gradient_clip_val = 0.02;
    clipped.trainer.gradient_clip_algorithm = algorithm;
    const auto oracle = fit(clipped, 1);
    EXPECT_GT(distance(oracle, free), 1e-3) << algorithm;
    EXPECT_LT(distance(fit(clipped, 2), oracle), 1e-12) << algorithm;
  }
}

TEST_F(Strategies, EveryNameTrains) {
  const auto oracle = fit(options_, 1);
  for (const auto& name : strategy_names()) {
    auto options = options_;
    options.trainer.strategy = name;
    const auto plan = resolve_plan(options, layout::Cluster::uniform(2, 1));
    if (plan.schedule != layout::kOneStageSchedule) continue;  // pipeline_run_test.cpp
    if (plan.mesh.size(layout::Axis::tensor) > 1) continue;    // tensor_run_test.cpp
    if (plan.mesh.size(layout::Axis::context) > 1) continue;   // context_run_test.cpp
    if (plan.exchange.method == layout::ExchangeMethod::downpour)
      continue;  // downpour_run_test.cpp
    if (plan.exchange.method == layout::ExchangeMethod::sandblaster)
      continue;  // sandblaster_run_test.cpp
    if (plan.exchange.method == layout::ExchangeMethod::fault_tolerant)
      continue;  // ft_ddp_run_test.cpp
    if (plan.exchange.method == layout::ExchangeMethod::collaborative)
      continue;  // swarm_run_test.cpp
    options.diloco = {.inner_steps = 3, .warmup_steps = 2, .outer_lr = 0.5, .outer_momentum = 0.5};
    options.local_sgd = {.period = 3, .warmup_steps = 5};
    const std::vector<int> machines{0, name == "ddp2" ? 1 : 0};  // it has one process on each
    const auto course = fit(options, machines, make_points_task);
    EXPECT_EQ(course.summary.steps, 12) << name;
    const bool is_local = name == "diloco" || name.ends_with("local_sgd");
    if (is_local) {
      EXPECT_GT(distance(course, oracle), 1e-6) << name;
    } else {
      EXPECT_LT(distance(course, oracle), 1e-12) << name;
    }
  }
}

TEST_F(Strategies, OptionsOfTheirSectionsCount) {
  std::map<std::string, FittedCourse> courses;
  const auto train = [&](const std::string& name, const std::vector<std::string>& arguments) {
    auto options = options_;
    auto table = make_table(options);
    for (const auto& argument : arguments) table.set_argument(argument);
    courses[name] = fit(options, 2);
  };
  const std::string local = "--trainer.strategy=local_sgd";
  const std::string post = "--trainer.strategy=post_local_sgd";
  train("ddp", {});
  train("fp16", {"--ddp.hook=fp16"});
  train("topk", {"--ddp.hook=topk", "--ddp.topk_density=0.5"});
  train("topk without feedback",
        {"--ddp.hook=topk", "--ddp.topk_density=0.5", "--ddp.error_feedback=false"});
  train("local 2", {local, "--local_sgd.period=2"});
  train("local 3", {local, "--local_sgd.period=3"});
  train("post 5", {post, "--local_sgd.period=3", "--local_sgd.warmup_steps=5"});
  train("diloco 2", {"--trainer.strategy=diloco", "--diloco.inner_steps=2"});
  train("diloco slow",
        {"--trainer.strategy=diloco", "--diloco.inner_steps=2", "--diloco.outer_lr=0.1"});
  for (const auto& [one, a] : courses) {
    for (const auto& [other, b] : courses) {
      if (one == other) continue;
      EXPECT_GT(distance(a, b), 1e-8) << one << " is " << other;
    }
  }
}

TEST_F(Strategies, UnknownNamesAreRefusedWithTheNearest) {
  auto table = make_table(options_);
  try {
    table.set("trainer.strategy", "post_locl_sgd");
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::EndsWith("(did you mean post_local_sgd?)"));
  }
  options_.trainer.strategy = "dpp";
  EXPECT_ERROR(resolve_plan(options_, layout::Cluster::uniform(1, 1)), ErrorKind::usage,
               "[train] unknown strategy; got dpp (did you mean ddp?)");
}

// Threads of one process, on batches that cannot be cut into equal shares.
TEST_F(Strategies, DpIsOneProcess) {
  options_.data.global_batch_size = 5;
  const auto oracle = fit(options_, 1);
  options_.trainer.strategy = "dp";
  for (const int64_t devices : {1, 2, 3, 7}) {
    options_.trainer.devices = devices;
    const auto course = fit(options_, 1, [&] { return make_replicas(devices); });
    EXPECT_LT(distance(course, oracle), 1e-10) << devices;
  }
  EXPECT_ERROR(fit(options_, 1), ErrorKind::usage,
               "[train] strategy dp and the task disagree; got 1 replicas, expected 7 (dp trains a "
               "ReplicatedTask of trainer.devices replicas)");
}

// A process on each of four machines, each with its own threads.
TEST_F(Strategies, Ddp2IsDpInEachMachineAndDdpBetweenThem) {
  options_.data.global_batch_size = 8;
  const auto oracle = fit(options_, 1);
  options_.trainer.strategy = "ddp2";
  options_.trainer.devices = 2;
  const std::vector<int> machines{0, 1, 2, 3};
  EXPECT_LT(distance(fit(options_, machines, [&] { return make_replicas(2); }), oracle), 1e-10);
  EXPECT_ERROR(fit(options_, {0, 1, 2, 2}, [&] { return make_replicas(2); }), ErrorKind::usage,
               "[train] strategy ddp2 has one process on each machine; got 2 on machine 2, "
               "expected one of trainer.devices threads (ddp takes several processes a machine)");
}

TEST_F(Strategies, DpIsOneProcessInMixedPrecision) {
  options_.trainer.precision = "bf16-mixed";
  const auto oracle = fit(options_, 1);
  options_.trainer.strategy = "dp";
  for (const int64_t devices : {1, 2, 3}) {
    options_.trainer.devices = devices;
    // The shares of a batch are rounded to bfloat16 separately.
    EXPECT_LE(distance(fit(options_, 1, [&] { return make_replicas(devices); }), oracle),
              devices == 1 ? 0 : 0.01)
        << devices;
  }
}

TEST_F(Strategies, DpRefusesToScaleTheLoss) {
  options_.trainer.strategy = "dp";
  options_.trainer.devices = 2;
  const auto task = make_replicas(2);
  for (const std::string precision : {"16-mixed", "16-true"}) {
    options_.trainer.precision = precision;
    const auto plan = resolve_plan(options_, layout::Cluster::uniform(1, 1));
    EXPECT_ERROR(make_exchange(plan, options_, {}, *task,
                               comm::MeshGroups(comm::local::alone(), plan.mesh), nullptr),
                 ErrorKind::usage,
                 "[train] strategy dp makes gradients before the loss is scaled; got precision " +
                     precision + ", expected 32, 64, bf16-mixed or bf16-true (ddp takes it)");
  }
}

}  // namespace
}  // namespace troika::train
