// Steps of a pipeline without flushes on the ranks of a group, and the oracle: one process that
// makes the same delayed steps one after the other.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/parallel/pipeline_course.h"
#include "troika/comm/local/local.h"
#include "troika/compat/torch.h"
#include "troika/nn/state.h"
#include "troika/optim/optimizer.h"
#include "troika/parallel/pipeline/pipeline.h"
#include "troika/parallel/pipeline/stage_module.h"

namespace troika::parallel::delayed_steps {

using comm::Group;
using layout::StageWeights;

struct Course {
  std::string model = "mlp";
  int stages = 2;
  int replicas = 1;
  StageWeights weights = StageWeights::stashed;
  int micro_batches = 1;             // of a step
  std::vector<int> segments = {30};  // micro-batches between drains
  std::string optimizer = "sgd";
  int in_flight = 1;
  int64_t samples = 2;  // of a micro-batch
  // The number of replicas of each stage, if they share the micro-batches. If empty, each of
  // `replicas` has micro-batches of its own.
  std::vector<int> shared_by = {};
  bool steps_by_replicas = false;
  layout::WarmUp warm_up_by = layout::WarmUp::runtime;

  int sharing(int stage) const {
    return shared_by.empty() ? 1 : shared_by[static_cast<size_t>(stage)];
  }
  int micro_batches_of(int stage) const {
    return steps_by_replicas ? sharing(stage) : micro_batches;
  }
  std::string mesh() const {
    return shared_by.empty()
               ? fmt::format("pipeline={} data={}", stages, replicas)
               : fmt::format("pipeline={} data={}", stages, fmt::join(shared_by, "-"));
  }
  int ranks() const { return layout::Mesh::parse(mesh()).ranks(); }
};

// Micro-batches from `first` on; those of a replica are every `replicas`-th one of the oracle's.
class Segment : public MicroBatchSource {
 public:
  Segment(CaseBatches& all, int first, int replicas, int replica, double weight)
      : all_(all), first_(first), replicas_(replicas), replica_(replica), weight_(weight) {}

  nn::Tensors inputs(int i) override { return all_.inputs(at(i)); }
  at::Tensor loss(int i, nn::Tensors outputs) override {
    return all_.loss(at(i), std::move(outputs));
  }
  at::Tensor root(int, const at::Tensor& loss) override { return loss * weight_; }
  std::shared_ptr<const nn::SampleKeys> keys(int i) override { return all_.keys(at(i)); }

 private:
  int at(int i) const { return (first_ + i) * replicas_ + replica_; }

  CaseBatches& all_;
  const int first_, replicas_, replica_;
  const double weight_;
};

inline int all_micro_batches(const Course& course) {
  int sum = 0;
  for (const int segment : course.segments) sum += segment;
  return sum;
}

inline PipelineCase case_of(const Course& course) {
  return pipeline_case_alone(course.model,
                             course.samples * all_micro_batches(course) * course.replicas);
}

constexpr double kLearningRate = 0.05;

inline std::unique_ptr<optim::FlatOptimizer> optimizer_of(
    const Course& course, std::vector<optim::Parameter> parameters) {
  optim::OptimizerOptions options{.name = course.optimizer, .lr = kLearningRate};
  if (course.optimizer == "sgd") options.momentum = 0.9;
  return optim::make_optimizer(std::move(parameters), options);
}

using Values = std::map<std::string, at::Tensor>;

// The micro-batches whose gradients a stage has not yet when it begins one: for each replica, the
// other ranks of its stage and of later ones, divided by its stage's replicas (the warm-up of
// PipeDream's runtime). NOAM counts so many ranks more that all are a multiple of the first
// stage's replicas, but not for the last stage.
inline int delay(const Course& course, int stage) {
  int others = -1;
  for (int s = stage; s < course.stages; ++s) others += course.sharing(s);
  if (course.warm_up_by == layout::WarmUp::noam && stage + 1 < course.stages) {
    for (int ranks = course.ranks(); ranks % course.sharing(0) != 0; ++ranks) ++others;
  }
  return course.in_flight * (others / course.sharing(stage)) * course.sharing(stage);
}

// The number of steps whose results a stage's forward pass of micro-batch b uses (Narayanan et al.,
// SOSP 2019, section 3.3, and 2021, section 3.1).
inline int version(const Course& course, int stage, int b) {
  const int p = course.stages, m = course.micro_batches_of(stage);
  const int first = delay(course, 0), own = delay(course, stage);
  if (p == 1) return b / m;
  switch (course.weights) {
    case StageWeights::stashed:
    case StageWeights::unstashed:
      return std::max(0, b - own) / m;
    case StageWeights::vertical_sync:
      return std::max(0, b - first) / m;
    default:
      return std::max(0, b / m - 1);
  }
}

// The same for the backward pass: without the stash, all steps before that of the micro-batch.
inline int backward_version(const Course& course, int stage, int b) {
  if (course.weights != StageWeights::unstashed) return version(course, stage, b);
  return b / course.micro_batches_of(stage);
}

struct Results {
  std::vector<Values> after;   // by segment: parameters and buffers
  std::vector<double> losses;  // by micro-batch, over all replicas
};

// The buffers of a model, by replica of the stage that has them, as its micro-batches update them.
// Running statistics have one version, and change no gradient. At the end of each step, the
// replicas of a stage take those of its first replica that had a micro-batch in the step. These
// count all forward passes that this replica has run by then.
class RunningStatistics {
 public:
  RunningStatistics(const Course& course, const nn::Model& model,
                    std::function<int(const std::string&)> stage_of)
      : course_(course), stage_of_(std::move(stage_of)) {
    for (const auto& [name, buffer] : nn::named_buffers(model)) {
      values_[name].assign(static_cast<size_t>(replicas(stage_of_(name))), buffer.detach().clone());
    }
  }

  // Runs a forward pass, and returns what it adds to buffers that are 0.
  static Values added_by(const nn::Model& model, const std::function<void()>& forward) {
    const auto buffers = nn::named_buffers(model);
    for (const auto& [name, buffer] : buffers) buffer.variable_data().zero_();
    forward();
    Values result;
    for (const auto& [name, buffer] : buffers) result[name] = buffer.detach().clone();
    return result;
  }

  // `added` is by micro-batch since the last drain, and replica of the course.
  void update(const std::vector<Values>& added) {
    constexpr double kMomentum = 0.1;  // LibTorch's default
    for (auto& [name, values] : values_) {
      const double decay = name.ends_with("num_batches_tracked") ? 1 : 1 - kMomentum;
      const int stage = stage_of_(name), count = replicas(stage);
      const int segment = static_cast<int>(added.size()) / course_.replicas;
      const int warm_up = delay(course_, stage) / course_.sharing(stage);
      std::vector<int> begun(values.size());  // of the replica's micro-batches
      for (int first = 0, end = 0; first < segment; first = end) {
        end = std::min(segment, first + course_.micro_batches_of(stage));
        int root = -1;
        for (int replica = 0; replica < count; ++replica) {
          const auto own_before = [&](int b) {
            return course_.shared_by.empty() ? b : (b - replica + count - 1) / count;
          };
          if (own_before(end) == own_before(first)) continue;
          if (root < 0) root = replica;
          // With two versions, the next forward pass does not wait for the step.
          const int ahead =
              warm_up + (course_.weights == StageWeights::double_buffered && course_.stages > 1);
          const int all = std::min(own_before(segment), own_before(end) + ahead);
          for (int& own = begun[static_cast<size_t>(replica)]; own < all; ++own) {
            const int i = course_.shared_by.empty() ? own * course_.replicas + replica
                                                    : own * count + replica;
            auto& value = values[static_cast<size_t>(replica)];
            value = value * decay + added[static_cast<size_t>(i)].at(name);
          }
        }
        const auto taken = values[static_cast<size_t>(root)].clone();
        for (auto& value : values) value.copy_(taken);
      }
    }
  }

  // After a drain, when they are the same on all replicas.
  Values values() const {
    Values result;
    for (const auto& [name, values] : values_) result[name] = values.front().clone();
    return result;
  }

 private:
  int replicas(int stage) const {
    return course_.shared_by.empty() ? course_.replicas : course_.sharing(stage);
  }

  const Course& course_;
  const std::function<int(const std::string&)> stage_of_;
  std::map<std::string, std::vector<at::Tensor>> values_;  // by replica
};

// One process that makes the same steps one after the other, each micro-batch with the weights of
// its versions.
inline Results oracle(const Course& course) {
  Results results;
  const auto of = case_of(course);
  auto& model = *of.model;
  const int all = all_micro_batches(course), m = course.micro_batches, r = course.replicas;
  CaseBatches batches(of, all * r);
  const PipelineOptions options{.micro_batches = m, .weights = course.weights};
  const auto ends =
      ends_for(model, "",
               passes_for(options, layout::Mesh(layout::Axis::pipeline, course.stages),
                          model.blocks().size()));
  std::map<std::string, int> stage_of;
  for (int s = 0; s < course.stages; ++s) {
    const size_t begin = s == 0 ? 0 : ends[static_cast<size_t>(s) - 1];
    for (const auto& name : tensors_of_blocks(model, begin, ends[static_cast<size_t>(s)])) {
      stage_of[name] = s;
    }
  }
  std::vector<std::vector<optim::Parameter>> parameters(static_cast<size_t>(course.stages));
  for (const auto& [name, tensor] : nn::trained_parameters(model)) {
    parameters[static_cast<size_t>(stage_of.at(name))].push_back({name, tensor});
  }
  std::vector<std::unique_ptr<optim::FlatOptimizer>> optimizers;
  for (int s = 0; s < course.stages; ++s) {
    optimizers.push_back(optimizer_of(course, parameters[static_cast<size_t>(s)]));
    if (!course.steps_by_replicas) continue;
    optimizers.back()->set_learning_rate(kLearningRate * course.sharing(s) / course.sharing(0));
  }
  const auto values = [](const std::vector<optim::Parameter>& of) {
    Values result;
    for (const auto& parameter : of) result[parameter.name] = parameter.tensor.detach().clone();
    return result;
  };
  // Autograd does not count the change, so that a backward pass takes these values.
  const auto set = [](const std::vector<optim::Parameter>& of, const Values& from) {
    for (const auto& parameter : of) {
      parameter.tensor.variable_data().copy_(from.at(parameter.name));
    }
  };
  RunningStatistics statistics(course, model, [&](const auto& name) { return stage_of.at(name); });
  int first = 0;
  for (const int segment : course.segments) {
    std::vector<std::vector<Values>> versions;
    std::vector<Values> added;  // to buffers
    for (const auto& of : parameters) versions.push_back({values(of)});
    const auto use = [&](int (*version_of)(const Course&, int, int), int b) {
      for (size_t s = 0; s < parameters.size(); ++s) {
        const int used = version_of(course, static_cast<int>(s), b);
        set(parameters[s], versions[s].at(static_cast<size_t>(used)));
      }
    };
    model.zero_grad(/*set_to_none=*/true);
    for (int b = 0; b < segment; ++b) {
      for (int replica = 0; replica < r; ++replica) {
        use(version, b);
        const int i = (first + b) * r + replica;
        const nn::KeyedDraws draws(batches.keys(i));
        at::Tensor loss;
        added.push_back(RunningStatistics::added_by(
            model, [&] { loss = batches.loss(i, model.forward(batches.inputs(i))); }));
        use(backward_version, b);
        (loss * (1.0 / m / r)).backward();
        results.losses.push_back(loss.item<double>());
      }
      for (size_t s = 0; s < parameters.size(); ++s) {
        const int own = course.micro_batches_of(static_cast<int>(s));
        if ((b + 1) % own != 0 && b + 1 != segment) continue;
        set(parameters[s], versions[s].back());
        for (const auto& parameter : parameters[s]) {
          const at::NoGradGuard no_grad;
          if (own != m) parameter.tensor.mutable_grad().mul_(static_cast<double>(m) / own);
        }
        optimizers[s]->step();
        for (const auto& parameter : parameters[s]) parameter.tensor.mutable_grad().reset();
        versions[s].push_back(values(parameters[s]));
      }
    }
    for (size_t s = 0; s < parameters.size(); ++s) set(parameters[s], versions[s].back());
    first += segment;
    auto& after = results.after.emplace_back();
    for (const auto& of : parameters) after.merge(values(of));
    statistics.update(added);
    after.merge(statistics.values());
  }
  return results;
}

// Trains on the ranks of a group, and expects the oracle's numbers: bit by bit without replicas.
inline void expect_oracle_of(const Group& world, const Course& course, const Results& expected) {
  const auto mesh = layout::Mesh::parse(course.mesh(), world.size());
  const comm::MeshGroups groups(world, mesh);
  const auto of = case_of(course);
  const bool shares = mesh.has_uneven_stages();
  const int m = course.micro_batches, own_replica = groups.data().rank();
  const int replica = shares ? 0 : own_replica;
  CaseBatches batches(of, all_micro_batches(course) * course.replicas);
  const PipelineOptions options{.micro_batches = m,
                                .weights = course.weights,
                                .in_flight = course.in_flight,
                                .warm_up_by = course.warm_up_by,
                                .steps_by_replicas = course.steps_by_replicas};
  Pipeline pipeline(of.model, groups, options);
  const auto optimizer = optimizer_of(course, pipeline.parameters());
  optimizer->set_learning_rate(kLearningRate * pipeline.learning_rate_factor());
  const double bound = course.replicas == 1 && !shares ? 0 : 1e-12;
  const auto expect_near = [&](const at::Tensor& own, const at::Tensor& other, double bound,
                               const std::string& name) {
    EXPECT_LE((own - other).abs().max().item<double>(), bound)
        << name << " on rank " << world.rank();
  };
  int first = 0;
  for (size_t s = 0; s < course.segments.size(); ++s) {
    const int segment = course.segments[s];
    Segment source(batches, first, course.replicas, replica, 1.0 / m);
    // The next micro-batch that the last stage runs on this rank, and the distance to the one
    // after.
    const int turns = shares ? course.shared_by.back() : 1;
    int next = shares ? own_replica : 0;
    for (int64_t left = segment, step = 0; left > 0; left -= step) {
      step = pipeline.in_step(left);
      pipeline.zero_grad();
      const auto losses = pipeline.advance(source, left);
      pipeline.step(*optimizer);
      for (const auto& loss : losses) {
        const int b = first + next;
        next += turns;
        EXPECT_NEAR(loss.item<double>(),
                    expected.losses.at(static_cast<size_t>(b * course.replicas + replica)), bound);
      }
    }
    first += segment;
    for (const auto& parameter : pipeline.parameters()) {
      expect_near(parameter.tensor, expected.after[s].at(parameter.name), bound, parameter.name);
    }
    for (const auto& part : pipeline.exchanges()) {
      for (const auto& [name, buffer] : nn::named_buffers(part.module)) {
        // Running variances are computed by another formula.
        expect_near(buffer.to(at::kDouble), expected.after[s].at(name).to(at::kDouble), 1e-12,
                    name);
      }
    }
  }
  const auto order = layout::asynchronous_stage(asynchronous_pipeline(options, mesh),
                                                pipeline.place().own_stages().front());
  EXPECT_LE(pipeline.most_versions(), static_cast<size_t>(order.most_versions()));
  EXPECT_EQ(pipeline.most_active(), static_cast<size_t>(order.own_warm_up() + 1));
}

inline void expect_delayed_steps(const Course& course) {
  SCOPED_TRACE(fmt::format("{}, {}, weights {}, {} micro-batches, {}", course.model, course.mesh(),
                           layout::asynchronous_schedule_name(course.weights), course.micro_batches,
                           course.optimizer));
  const auto expected = oracle(course);
  comm::local::run(course.ranks(), [&](Group world) { expect_oracle_of(world, course, expected); });
}

}  // namespace troika::parallel::delayed_steps
