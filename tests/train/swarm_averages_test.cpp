// How the peers of a swarm average: in groups, and with compression.
#include <gmock/gmock.h>

#include <cmath>

#include "tests/support/errors.h"
#include "tests/train/swarm_training.h"

namespace troika::train {
namespace {

using testing::HasSubstr;

// Its weights of 192 and 128 elements are compressed from 100 elements, its biases are not.
std::shared_ptr<Task> make_wide_task() {
  torch::nn::Sequential net(torch::nn::Linear(3, 64), torch::nn::Tanh(), torch::nn::Linear(64, 2));
  fill_with_waves(*net);
  return std::make_shared<Task>(nn::from_sequential(net));
}

// No group has all peers, but the step is that of one process on the samples of all.
TEST_F(SwarmTraining, AveragesInGroupsAsOneProcess) {
  use_plain_sgd();
  options_.trainer.max_steps = 1;
  options_.data.global_batch_size = 26;
  options_.data.batch_size = 1;
  options_.swarm.target_group_size = 7;
  TrainedSamples trained;
  const auto courses = fit_all(peers(14), make_smooth_task<>, &trained);
  ASSERT_EQ(trained.of_step.size(), 1U);
  const auto oracle = course_on(trained, make_smooth_task<>);
  for (const auto& course : courses) {
    EXPECT_EQ(distance(course, courses.front()), 0);
    EXPECT_LE(distance(course, oracle), 1e-10);
    EXPECT_LT(course.summary.metrics.at("swarm_peers"), 14);
  }
}

// The greatest magnitude of a gradient of one sample.
double greatest_gradient(const std::shared_ptr<Task>& task) {
  task->module().to(torch::kDouble);
  const Waves waves;
  double greatest = 0;
  for (int64_t i = 0; i < waves.size(); ++i) {
    task->module().zero_grad();
    auto batch = waves.load(std::vector{i}, {});
    batch.inputs = batch.inputs.to(torch::kDouble);
    task->training_step(batch).backward();
    for (const auto& parameter : task->module().parameters()) {
      greatest = std::max(greatest, parameter.grad().abs().max().item<double>());
    }
  }
  return greatest;
}

// Contributions are rounded, and then their mean.
TEST_F(SwarmTraining, CompressionRoundsLargeGradientsOnly) {
  use_plain_sgd();
  options_.trainer.max_steps = 1;
  options_.swarm.grad_compression_threshold = 100;
  const double greatest = greatest_gradient(make_wide_task());
  for (const auto& [codec, error] :
       std::vector<std::pair<std::string, double>>{{"fp16", std::exp2(-11)}, {"int8", 1.0 / 254}}) {
    SCOPED_TRACE(codec);
    options_.swarm.grad_compression = codec;
    TrainedSamples trained;
    const auto courses = fit_all(peers(3), make_wide_task, &trained);
    const auto oracle = course_on(trained, make_wide_task);
    for (const auto& course : courses) {
      EXPECT_EQ(distance(course, courses.front()), 0);
      EXPECT_LE(distance(course, oracle), options_.optimizer.lr * 2.1 * error * greatest);
      for (size_t i = 0; i < course.weights.size(); ++i) {
        const double off = (course.weights[i] - oracle.weights[i]).abs().max().item<double>();
        if (course.weights[i].dim() == 1) {
          EXPECT_LE(off, 1e-14);
        } else {
          EXPECT_GT(off, 1e-10);
        }
      }
    }
  }
}

double loss_of(const FittedCourse& course) {
  const auto task = make_wide_task();
  task->module().to(torch::kDouble);
  const torch::NoGradGuard no_grad;
  const auto parameters = task->module().parameters();
  for (size_t i = 0; i < parameters.size(); ++i) parameters[i].copy_(course.weights[i]);
  const Waves waves;
  std::vector<int64_t> all(static_cast<size_t>(waves.size()));
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
  auto batch = waves.load(all, {});
  batch.inputs = batch.inputs.to(torch::kDouble);
  return task->training_step(batch).item<double>();
}

TEST_F(SwarmTraining, CompressionChangesTheLossOfARunByLessThanAHundredth) {
  use_plain_sgd();
  options_.trainer.max_steps = 15;
  options_.swarm.grad_compression = "int8";
  options_.swarm.grad_compression_threshold = 0;
  TrainedSamples trained;
  const auto courses = fit_all(peers(2), make_wide_task, &trained);
  ASSERT_EQ(trained.of_step.size(), 15U);
  const auto oracle = course_on(trained, make_wide_task);
  EXPECT_EQ(distance(courses[0], courses[1]), 0);
  const double loss = loss_of(oracle);
  EXPECT_LT(loss, loss_of(course_on({}, make_wide_task)) / 2);
  EXPECT_NEAR(loss_of(courses[0]), loss, loss / 100);
}

TEST_F(SwarmTraining, PeersOfAnotherKindOfAverageDoNotFit) {
  options_.comm.join_timeout_seconds = 2;
  auto all = peers(2);
  all[0].swarm.grad_compression = "int8";
  all[1].swarm.target_group_size = 4;
  std::vector<std::string> problems(all.size());
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < all.size(); ++i) {
      threads.emplace_back([&, i] {
        try {
          fit(all[i], make_smooth_task(), member(all[i]), {});
        } catch (const Error& problem) {
          problems[i] = problem.what();
        }
      });
    }
  }
  // The first one that gives up tells what the other one, which is still there, does.
  EXPECT_THAT(problems, testing::Each(HasSubstr("the swarm is not there in time")));
  EXPECT_THAT(problems, testing::Contains(testing::AllOf(
                            HasSubstr("of the swarm trains something else"),
                            HasSubstr("swarm.aggregation mean, swarm.target_group_size 0, "
                                      "swarm.grad_compression int8 from 65536 elements"),
                            HasSubstr("swarm.target_group_size 4, swarm.grad_compression none"))));
}

TEST_F(SwarmTraining, GroupsRefuseCentredClipping) {
  options_.swarm.target_group_size = 8;
  options_.swarm.aggregation = "centred_clip";
  EXPECT_ERROR(member(options_), ErrorKind::usage,
               "[train] the groups of a swarm that are parts of it compute means; got "
               "swarm.aggregation centred_clip, expected mean (swarm.target_group_size=0 makes one "
               "group of all)");
}

}  // namespace
}  // namespace troika::train
