// The trainer on pipelines without flushes, compared with one process that makes the same delayed
// steps one after the other.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/train/pipelined_runs.h"
#include "troika/data/sampler.h"
#include "troika/optim/optimizer.h"
#include "troika/parallel/norm.h"
#include "troika/parallel/pipeline/pipeline_schedule.h"
#include "troika/parallel/pipeline/stage_module.h"
#include "troika/train/options/resolve_plan.h"
#include "troika/train/run/fit_context.h"

namespace troika::train {

using layout::StageWeights;

class AsksToStop : public Callback {
 public:
  explicit AsksToStop(int64_t after) : after_(after) {}
  std::string name() const override { return "asks_to_stop"; }
  void on_train_batch_end(FitContext& context, const data::Batch&, const at::Tensor&) override {
    if (context.at.step == after_) context.ask_to_stop("enough");
  }

 private:
  const int64_t after_;  // this step
};

class AsynchronousRuns : public PipelinedRuns {
 protected:
  static constexpr int kMicroBatches = 11;  // of an epoch

  struct Stage {
    layout::AsynchronousStage order;
    std::vector<optim::Parameter> parameters;
    std::unique_ptr<optim::FlatOptimizer> optimizer;
    std::vector<std::vector<at::Tensor>> versions;
  };

  AsynchronousRuns() { options_.trainer.gradient_clip_algorithm = "stage_norm"; }

  TrainOptions asynchronous(const std::string& strategy, int64_t micro_batches = 0) const {
    return pipelined(strategy, micro_batches);
  }

  // The weights after steps of one process, each micro-batch of a stage with the version that it
  // has in a pipeline of `ranks` stages. `segments` are the micro-batches between drains.
  ModuleState oracle(const TrainOptions& options, int ranks, const std::string& model_name,
                     const std::vector<int>& segments) const {
    const auto plan = resolve_plan(options, layout::Cluster::uniform(1, ranks));
    const auto m = static_cast<int>(plan.micro_batches);
    const auto model = make_sized_model(model_name);
    model->to(at::kDouble);
    model->train();
    const auto stage_of = stages_of(*model, plan);
    std::vector<Stage> stages;
    for (int i = 0; i < plan.mesh.size(layout::Axis::pipeline); ++i) {
      auto& stage = stages.emplace_back();
      stage.order = layout::asynchronous_stage(plan.asynchronous(), i);
      for (const auto& [name, tensor] : nn::trained_parameters(*model)) {
        if (stage_of.at(name) == i) stage.parameters.push_back({name, tensor});
      }
      stage.optimizer = optim::make_optimizer(stage.parameters, options.optimizer);
      stage.optimizer->set_learning_rate(options.optimizer.lr * stage.order.learning_rate_factor);
    }
    const SizedSamples samples(sizes_of(model_name));
    const data::Sampler sampler({.size = samples.size(),
                                 .global_batch = 4,
                                 .seed = static_cast<uint64_t>(options.run.seed)});
    std::vector<std::vector<int64_t>> order;
    for (int64_t epoch = 0; epoch < 4; ++epoch) {
      for (auto& batch : sampler.batches({epoch, 0})) order.push_back(std::move(batch));
    }
    size_t next = 0;
    for (const int segment : segments) {
      for (auto& stage : stages) stage.versions = {values(stage.parameters)};
      model->zero_grad(/*set_to_none=*/true);
      for (int b = 0; b < segment; ++b) {
        for (size_t i = 0; i < stages.size(); ++i) {
          const auto& stage = stages[i];
          const auto used = plan.mesh.has_uneven_stages()
                                ? stage.order.version(b)
                                : version(plan.weights(), m, ranks, static_cast<int>(i), b);
          set(stage.parameters, stage.versions.at(static_cast<size_t>(used)));
        }
        const auto batch = samples.load(order.at(next++), {});
        const auto outputs = model->forward(batch.inputs.to(at::kDouble));
        (at::cross_entropy_loss(outputs, batch.targets) * (1.0 / m)).backward();
        for (auto& stage : stages) {
          const auto own = stage.order.micro_batches;
          if ((b + 1) % own != 0 && b + 1 != segment) continue;
          set(stage.parameters, stage.versions.back());
          step(stage, static_cast<double>(m) / static_cast<double>(own),
               options.trainer.gradient_clip_val);
        }
      }
      for (const auto& stage : stages) set(stage.parameters, stage.versions.back());
    }
    ModuleState result;
    for (const auto& [name, tensor] : nn::named_state(*model)) result[name] = tensor.detach();
    return result;
  }

  // The drains come at the ends of epochs.
  static std::vector<int> epochs(int count) {
    return std::vector<int>(static_cast<size_t>(count), kMicroBatches);
  }

  static void expect_equal(const ModuleState& found, const ModuleState& expected) {
    for (const auto& [name, tensor] : expected) {
      EXPECT_TRUE(found.at(name).equal(tensor)) << name;
    }
  }
  static void expect_near(const ModuleState& found, const ModuleState& expected) {
    for (const auto& [name, tensor] : expected) {
      EXPECT_LE((found.at(name) - tensor).abs().max().item<double>(), 1e-12) << name;
    }
  }

 private:
  static std::map<std::string, int> stages_of(const nn::Model& model, const layout::Plan& plan) {
    const parallel::PipelineOptions options{.micro_batches = static_cast<int>(plan.micro_batches),
                                            .weights = plan.weights()};
    const auto ends = parallel::ends_for(
        model, plan.stages.cut, parallel::passes_for(options, plan.mesh, model.blocks().size()));
    std::map<std::string, int> result;
    size_t begin = 0;
    for (size_t s = 0; s < ends.size(); ++s) {
      for (const auto& name : parallel::tensors_of_blocks(model, begin, ends[s])) {
        result[name] = static_cast<int>(s);
      }
      begin = ends[s];
    }
    return result;
  }

  static int version(StageWeights weights, int m, int p, int stage, int b) {
    if (p == 1) return b / m;
    if (weights == StageWeights::double_buffered) return std::max(0, b / m - 1);
    const int delay = weights == StageWeights::stashed ? p - 1 - stage : p - 1;
    return std::max(0, b - delay) / m;
  }

  static std::vector<at::Tensor> values(const std::vector<optim::Parameter>& parameters) {
    std::vector<at::Tensor> result;
    for (const auto& parameter : parameters) result.push_back(parameter.tensor.detach().clone());
    return result;
  }

  static void set(const std::vector<optim::Parameter>& parameters,
                  const std::vector<at::Tensor>& values) {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < parameters.size(); ++i) parameters[i].tensor.copy_(values[i]);
  }

  static void step(Stage& stage, double factor, double bound) {
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> gradients;
    for (const auto& parameter : stage.parameters) {
      gradients.push_back(parameter.tensor.grad());
      if (factor != 1) gradients.back().mul_(factor);
    }
    if (bound > 0) {
      parallel::clip_to(gradients, std::sqrt(parallel::sum_of_squares(gradients)), bound);
    }
    stage.optimizer->step();
    for (const auto& parameter : stage.parameters) parameter.tensor.mutable_grad().reset();
    stage.versions.push_back(values(stage.parameters));
  }
};

}  // namespace troika::train
