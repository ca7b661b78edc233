// Data parallelism inside one process: threads that each train on a share of the batch.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "troika/data/batch.h"

namespace torch::nn {
class Module;
}

namespace troika::parallel {

class ThreadTeam;

// One of several copies of a module. `loss` returns the mean loss over the samples of a batch, a
// tensor of one element.
struct ModuleReplica {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(const data::Batch& batch)> loss;
};

// PyTorch's DataParallel. Replicas and their threads persist from step to step, and LibTorch's
// threads are divided evenly among them.
//
// On CPUs, replicas share the memory of the first replica's parameters, so a step copies no
// parameters. If the first replica's parameters are on device n of another type, replica r is on
// device n + r: a step copies parameters and shares of the batch to these devices, and gradients
// back. Copies and computation are in the order of the caller's current streams, for which the host
// does not wait.
//
//   parallel::Replicated replicated(replicas);
//   replicated.loss({inputs, targets}).backward();  // gradients of the first replica's module
//
// If the loss is a mean over samples, a step equals the one-process step on the whole batch, up to
// rounding. Before each step, replicas get the first replica's buffers and training mode. Changes
// to buffers persist only in the first replica, which sees only its share of the batch. Random
// numbers (dropout) come from a generator that all threads share, so their order is not
// deterministic.
//
// Not thread-safe.
class Replicated {
 public:
  // Throws Error(usage) without replicas, and if their parameters and buffers differ in names or
  // shapes.
  explicit Replicated(std::vector<ModuleReplica> replicas);
  ~Replicated();
  Replicated(const Replicated&) = delete;
  Replicated& operator=(const Replicated&) = delete;

  // Returns the mean loss over the batch, which data::split() divides among the replicas. Runs the
  // forward pass, under the caller's autocast, and the backward pass. backward() on the result, at
  // most once, adds to the gradients of the first replica. A factor on the returned loss multiplies
  // the finished gradients, which is too late to prevent underflow in float16. Throws the errors of
  // data::split() and of a replica's loss.
  at::Tensor loss(const data::Batch& batch);

  int size() const { return static_cast<int>(replicas_.size()); }

 private:
  void follow_first();

  const std::vector<ModuleReplica> replicas_;
  std::unique_ptr<ThreadTeam> team_;
};

}  // namespace troika::parallel
