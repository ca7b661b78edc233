// Data parallelism for any torch::nn::Module, attached from outside by gradient hooks.
//
// It replicates one module per rank and averages gradients; it does not shard anything, and knows
// nothing of data.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "troika/base/trace.h"
#include "troika/comm/codec/codec.h"
#include "troika/comm/group.h"
#include "troika/nn/module_watch.h"
#include "troika/parallel/exchange.h"
#include "troika/parallel/hook_thread.h"

namespace torch::nn {
class Module;
}

namespace troika::parallel {

class Reducer;

// How begin_step()'s weights make a mean.
enum class Divisor {
  weights,  // sum(weight * gradient) / sum(weight): exact means where ranks' batches differ
  ranks,    // sum(weight * gradient) / ranks: PyTorch's divide_by_initial_world_size
};

struct DataParallelOptions {
  // Gradients are averaged in buckets; one closes with the gradient that brings it to this size.
  // The defaults are PyTorch's (Li et al., VLDB 2020, section 3.2.3).
  int64_t bucket_bytes = 25 << 20;
  // The first bucket to fill is smaller, so that communication starts early.
  int64_t first_bucket_bytes = 1 << 20;
  // Give every rank one rank's buffers (e.g. batch-norm statistics) at the end of each step.
  bool broadcast_buffers = true;
  // Start from rank 0's parameters and buffers. If not, ranks must hold the same bits already,
  // which is checked.
  bool copy_state = true;
  // Parameters may lack a gradient on some ranks or on all, in some steps. What lacks one on a rank
  // counts as zero there; what lacks one everywhere keeps its .grad as it is, undefined or not.
  // Costs a small collective a step, and buckets that miss a gradient wait for finish_backward().
  bool find_unused_parameters = false;
  // Every backward pass makes the same gradients the same number of times: learned in the first
  // step, which does not overlap. Allows parameters that several parts of one pass use (recomputed
  // activations), and parameters that are never used.
  bool static_graph = false;
  Divisor divisor = Divisor::weights;
  // Averages with fewer bytes; beside the backward pass, on a thread and a group of its own.
  comm::CodecOptions codec = {};
  // Takes the codec's place: a function of the user's.
  BucketHook hook = {};
  // The order that bucket_order() gave: the buckets keep it from the start. A run that continues
  // a saved one needs it to have the bits of one that was not interrupted.
  std::vector<std::string> bucket_order = {};
  // Takes, beside the spans of the caller's own: on track "compute" an instant "bucket ready" for
  // each bucket whose last gradient is there, and the span "buffers"; on track "communication" a
  // span "bucket" while this rank carries out its average, the wait for other ranks included; that
  // one is on track "compute" where the group has no thread beside the caller's. One rank by itself
  // has no buckets. Must outlive the DataParallel.
  Trace* trace = nullptr;
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
// a step equals the one-process step on the joined batch. Half-precision gradients are summed in
// float32; sparse ones become dense.
//
// Gradients are views into the buckets. Optimizers may zero or undefine them. One rank by itself,
// without codec or hook, has no buckets, and its gradients stay where autograd puts them. At the
// end of the first step, buckets are made anew in the order in which gradients arrived on rank 0
// (not with find_unused_parameters), and gradients move. Where that is due, codecs and hooks begin
// after it.
//
// The module must outlive this object; use from one thread. After an error this object must not be
// used again. Other collectives on `group` during backward must come in the same order between the
// gradients on all ranks; a group of their own (split) is safe.
class DataParallel : public Exchange {
 public:
  DataParallel(torch::nn::Module& module, comm::Group group,
               const DataParallelOptions& options = {});
  ~DataParallel() override;

  // A collective of 8 bytes a rank. Buffers come from the lowest rank with weight.
  bool begin_step(double weight) override;
  // Blocks until gradients (and buffers) agree on all ranks. Throws Error(usage) naming the
  // parameters that got no gradient, or that were frozen or added meanwhile, and whatever the
  // group's collectives throw.
  void finish_backward() override;
  // Every rank has the same bits, so clip_grad_norm() does not communicate.
  std::vector<at::Tensor> gradients() const override;
  std::vector<optim::Parameter> parameters() const override;
  void step_by(const std::function<void()>& update) override;
  // Parameters are equal after each step, buffers with broadcast_buffers; else all get rank 0's.
  void agree() override;
  // The codec's state and, once it is final, the order of parameters in buckets.
  optim::NamedTensors state() const override;
  // Outside of a step. Makes new buckets.
  void load_state(const optim::NamedTensors& state) override;
  void continue_step() override;
  bool set_syncing(bool syncing) override;

  // After parameters were frozen, unfrozen, added or cast, the same on all ranks, outside of a
  // step: checks and copies as construction does, and makes new buckets. Gradients keep their
  // values; what a codec keeps is dropped. Blocks.
  void refresh();

  // None without codec. Not during backward.
  comm::Codec* codec() const { return codec_.get(); }
  std::vector<std::string> bucket_order() const;

  size_t bucket_count() const;
  // Buckets handed to the group since the last finish_backward(): above 0 during backward shows
  // overlap.
  size_t launched() const;

 private:
  void attach();
  void make_reducer();

  torch::nn::Module& module_;
  nn::ModuleWatch watch_;
  comm::Group group_;
  DataParallelOptions options_;
  std::shared_ptr<comm::Codec> codec_;
  std::unique_ptr<Reducer> reducer_;
  int buffers_from_ = 0;  // the rank whose buffers all get at the end of this step
};

}  // namespace troika::parallel
