// Data parallelism for any torch::nn::Module, attached from outside by gradient hooks.
//
// It replicates one module per rank and averages gradients; it does not shard anything, and knows
// nothing of optimizers or data.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "troika/comm/group.h"

namespace torch::nn {
class Module;
}

namespace troika::compat {
class GradientHook;
}

namespace troika::parallel {

struct DataParallelOptions {
  // Gradients are averaged in buckets; one closes with the gradient that brings it to this size.
  // The defaults are PyTorch's (Li et al., VLDB 2020, section 3.2.3).
  int64_t bucket_bytes = 25 << 20;
  // The first bucket to fill is smaller, so that communication starts early.
  int64_t first_bucket_bytes = 1 << 20;
  // Give every rank rank 0's buffers (e.g. batch-norm statistics) at the end of each step.
  bool broadcast_buffers = true;
};

// Keeps the replicas of a module equal:
//
//   parallel::DataParallel ddp(*model, group);
//   loss.backward(); ddp.finish_backward(); optimizer.step();
//
// Construction checks that all ranks hold the same parameters (name, shape, type; an Error on every
// rank names the first that differs), and copies rank 0's parameters and buffers to all. During
// backward, each bucket is averaged on the group's thread as soon as its gradients are there;
// finish_backward() waits for the rest. After it, every parameter's .grad is the mean over the
// ranks' gradients, the same bits on all of them, so with a loss that is a mean over equal batches
// a step equals the one-process step on the joined batch.
//
// Gradients are views into the buckets. Optimizers may zero or undefine them. The module must
// outlive this object and keep its parameters; one backward pass per step; use from one thread.
class DataParallel {
 public:
  DataParallel(torch::nn::Module& module, comm::Group group,
               const DataParallelOptions& options = {});
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  // Blocks until gradients (and buffers) agree on all ranks. Throws Error(usage) naming the
  // parameters that got no gradient, and whatever the group's collectives throw; after an error
  // this object must not be used again.
  void finish_backward();

  size_t bucket_count() const { return buckets_.size(); }
  // Buckets handed to the group since the last finish_backward(): above 0 during backward shows
  // overlap.
  size_t launched() const { return launched_; }

 private:
  struct Slot {
    std::string name;
    at::Tensor parameter;
    at::Tensor view;  // of the bucket, in the parameter's shape
    bool ready = false;
    std::unique_ptr<compat::GradientHook> hook;
  };
  struct Bucket {
    at::Tensor flat;
    std::vector<Slot> slots;
    size_t pending = 0;
    std::optional<comm::Work> work;
  };

  void check_same_parameters() const;
  void broadcast_state();
  at::Tensor make_bucket(int64_t count, const at::Tensor& like) const;
  void make_buckets(const DataParallelOptions& options);
  void on_ready(Bucket& bucket, Slot& slot);
  void launch_full_buckets();
  std::string missing_gradients() const;

  torch::nn::Module& module_;
  comm::Group group_;
  const bool broadcast_buffers_;
  std::vector<Bucket> buckets_;
  size_t launched_ = 0;
};

}  // namespace troika::parallel
