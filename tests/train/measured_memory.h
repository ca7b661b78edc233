// The memory that a run takes, and its comparison with a prediction.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>

#include "tests/train/noise.h"
#include "tests/train/single_batch.h"
#include "troika/base/memory.h"
#include "troika/base/text.h"
#include "troika/compat/torch.h"
#include "troika/train/callbacks/weight_average.h"
#include "troika/train/engine/pipeline_plan.h"
#include "troika/train/options/resolve_plan.h"
#include "troika/train/run/fit_context.h"
#include "troika/train/task/replicated_task.h"

namespace troika::train {

inline data::Batch batch_of(const data::Dataset& dataset, int64_t size) {
  return dataset.load(std::vector<int64_t>(static_cast<size_t>(size)), {});
}

// The most bytes while a run starts, in each of its first two steps, where the replicas are made
// the same after them, and in a validation.
struct Measured {
  double start = 0, first = 0, second = 0, between = 0, validation = 0;

  double step() const { return std::max(first, second); }
  double peak() const { return std::max({start, first, second, between, validation}); }
};

inline Measured measure(const TrainOptions& options, const comm::Group& group,
                        const data::Dataset& data,
                        const std::function<std::shared_ptr<Task>()>& make) {
  const int64_t before = memory::live();
  const auto most = [before] { return static_cast<double>(memory::peak() - before); };
  memory::restart_peak();
  const auto task = make();
  task->module().train();
  const auto plan = resolve_plan(options, cluster_of(group));
  const comm::MeshGroups groups(group, plan.mesh);
  observe::StepTimes times;
  const auto engine = make_engine({.options = options,
                                   .plan = plan,
                                   .task = *task,
                                   .groups = groups,
                                   .steps = 2,
                                   .global_batch = options.data.batch_size * group.size(),
                                   .times = times});
  Measured result{.start = most()};
  const TrainProgress start;
  FitContext context{.options = options,
                     .group = group,
                     .groups = groups,
                     .folder = {},
                     .task = *task,
                     .at = start};
  context.training.plan = &plan;
  context.training.store = &engine->store();
  context.training.optimization = &engine->optimization();
  WeightAverage average(options.ema.decay, options.ema.use_buffers);
  if (options.ema.enabled) average.attach(context);
  auto batch = batch_of(data, options.data.batch_size);
  const auto validate = [&] {
    task->module().eval();
    const at::NoGradGuard no_grad;
    Evaluation evaluation;
    engine->evaluate(RunMode::validate, batch, evaluation);
  };
  // Edges keep their buffers after the sanity check.
  if (is_pipeline(plan)) validate();
  task->module().train();
  // Without flushes, the second step to measure is the one that takes most, up to a drain.
  const int64_t m = plan.micro_batches;
  const int64_t steps = 2 + 2 * ((engine->most_ahead() + m - 1) / m);
  const auto one = [&](int64_t i) {
    // Each of the batches in flight has memory of its own.
    if (plan.is_asynchronous() && i > 0) batch = batch_of(data, options.data.batch_size);
    train_on(*engine, times, batch, i, m, plan.is_asynchronous() ? (steps - 1 - i) * m : 0);
    return most();
  };
  result.first = one(0);
  for (int64_t i = 1; i < steps; ++i) result.second = std::max(result.second, one(i));
  memory::restart_peak();
  engine->synchronize_replicas();
  result.between = most();
  memory::restart_peak();
  if (options.ema.enabled) {
    average.update();
    average.put_into_module();
  }
  validate();
  result.validation = most();
  return result;
}

inline Measured measure(const TrainOptions& options, const comm::Group& group) {
  return measure(options, group, Noise(options.model), [&] { return make_task_to_fit(options); });
}

inline void expect_close(double predicted, double actual, const std::string& what,
                         double most = 1.10) {
  const auto text =
      fmt::format("{}: predicted {}, measured {}, {:+.1f} %", what, human_bytes(predicted),
                  human_bytes(actual), 100 * (predicted / actual - 1));
  std::puts(text.c_str());
  EXPECT_LE(predicted, most * actual) << text;
  EXPECT_GE(predicted, 0.97 * actual) << text;
}

}  // namespace troika::train
