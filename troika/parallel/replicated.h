// Data parallelism inside one process: threads that each learn from a share of the batch.
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

// One of several copies of a module, and the mean loss of samples by it: a tensor of one element.
struct ModuleReplica {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(const data::Batch& batch)> loss;
};

// PyTorch's DataParallel, on processors: replicas are kept from step to step and have the
// parameters of the first one by sharing their memory, so a step copies no parameters. Threads are
// kept too, and LibTorch's are shared out evenly among them.
//
//   parallel::Replicated replicated(replicas);
//   replicated.loss({inputs, targets}).backward();  // gradients of the first replica's module
//
// A step is the one-process step on the whole batch, up to rounding, where the loss is a mean over
// samples. Before each, replicas get the first one's buffers and training mode; what a step does
// to buffers stays in the first replica, which sees its share of the batch alone. Random numbers
// (dropout) come from the generator that all threads share, so their order is not fixed.
//
// For one thread at a time.
class Replicated {
 public:
  // Throws Error(usage) for no replicas, and where their parameters and buffers are not of the same
  // names and shapes.
  explicit Replicated(std::vector<ModuleReplica> replicas);
  ~Replicated();
  Replicated(const Replicated&) = delete;
  Replicated& operator=(const Replicated&) = delete;

  // The mean loss over the samples, whose tensors data::split() cuts; forward and backward pass are
  // done when it returns, the forward pass under the caller's autocast. backward() on the result,
  // once, adds to the gradients of the first replica; a factor of the loss multiplies them only
  // then, which is too late against underflow in float16. Throws what split() and a replica's loss
  // throw.
  at::Tensor loss(const data::Batch& batch);

  int size() const { return static_cast<int>(replicas_.size()); }

 private:
  void follow_first();

  const std::vector<ModuleReplica> replicas_;
  std::unique_ptr<ThreadTeam> team_;
};

}  // namespace troika::parallel
