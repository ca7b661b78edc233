// Data parallelism for any torch::nn::Module, attached from outside by gradient hooks.
//
// Replicates one module per rank and averages gradients. Shards nothing and does not handle data.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "troika/base/trace.h"
#include "troika/comm/codec/codec.h"
#include "troika/comm/group.h"
#include "troika/nn/block_wrapper.h"
#include "troika/nn/module_watch.h"
#include "troika/parallel/exchange.h"
#include "troika/parallel/hook_thread.h"

namespace torch::nn {
class Module;
}

namespace troika::parallel {

class BucketSums;
class CrossBarrier;
class Reducer;

// The divisor of the mean over ranks, with the weights of begin_step().
enum class Divisor {
  weights,  // sum(weight * gradient) / sum(weight): exact means where ranks' batches differ
  ranks,    // sum(weight * gradient) / ranks: PyTorch's divide_by_initial_world_size
};

struct DataParallelOptions {
  // Gradients are averaged in buckets. A bucket closes with the gradient that brings it to this
  // size. The defaults are PyTorch's (Li et al., VLDB 2020, section 3.2.3).
  int64_t bucket_bytes = 25 << 20;
  // The bucket that fills first is smaller, so that communication starts early.
  int64_t first_bucket_bytes = 1 << 20;
  // Broadcast one rank's buffers (e.g. batch-norm statistics) to all ranks at the end of each step.
  bool broadcast_buffers = true;
  // Copy rank 0's parameters and buffers to all ranks at the start. If false, all ranks must
  // already hold the same bits, which is checked.
  bool copy_state = true;
  // Parameters may lack a gradient on some or on all ranks in some steps. A gradient that is
  // missing on a rank counts as zero there; if it is missing on all ranks, .grad stays as it is.
  // Costs a small collective per step, and buckets with a missing gradient wait for
  // finish_backward().
  bool find_unused_parameters = false;
  // Every backward pass makes the same gradients the same number of times. The first step counts
  // them and does not overlap communication. Allows parameters that one backward pass uses several
  // times (recomputed activations) and parameters that are never used.
  bool static_graph = false;
  Divisor divisor = Divisor::weights;
  // Compresses gradients before they are averaged. Runs during the backward pass, on its own thread
  // and group.
  comm::CodecOptions codec = {};
  // A user's function that replaces the codec.
  BucketHook hook = {};
  // Averages buckets instead of the group's all-reduce; cannot be combined with a codec or a hook.
  // A single rank does not use it.
  std::shared_ptr<BucketSums> sums = {};
  // Only with `sums`, for a nn::Model (cross-barrier: Jiang et al., OSDI 2020, section 5): step()
  // returns at once, and each bucket's parameters are stepped when its mean is there: in the next
  // forward pass, in which each block waits for its own parameters, and at the latest before the
  // last block. See step_by().
  bool crosses_barrier = false;
  // The result of an earlier bucket_order(). The buckets have this order from the first step. A run
  // that resumes needs it to produce the same bits as an uninterrupted run.
  std::vector<std::string> bucket_order = {};
  // Records, next to the caller's own spans: on track "compute" an instant "bucket ready" when a
  // bucket's last gradient has arrived, and a span "buffers"; on track "communication" a span
  // "bucket" for the time in which this rank averages it, including the wait for other ranks. Where
  // the group has no thread besides the caller's, that span is on track "compute". A single rank
  // has no buckets. Must outlive the DataParallel.
  Trace* trace = nullptr;
};

// Keeps the replicas of a module equal:
//
//   parallel::DataParallel ddp(*model, group);
//   loss.backward(); ddp.finish_backward(); optimizer.step();
//
// Construction checks that all ranks hold the same parameters (name, shape, type; an Error on every
// rank names the first difference), and copies rank 0's parameters and buffers to all ranks. During
// the backward pass, each bucket is averaged on the group's thread as soon as its gradients have
// arrived; finish_backward() waits for the rest. Then every parameter's .grad is the mean over the
// ranks' gradients, with the same bits on all ranks. So if the loss is a mean over equal batches, a
// step equals the one-process step on the joined batch. Half-precision gradients are summed in
// float32; sparse gradients become dense.
//
// Gradients are views into the buckets. Optimizers may zero or undefine them. A single rank without
// codec and hook has no buckets, and its gradients stay where autograd puts them. At the end of the
// first step, buckets are rebuilt in the order in which gradients arrived on rank 0 (not with
// find_unused_parameters), and gradients move. Codecs and hooks are used only after this rebuild.
//
// The module must outlive this object. Use from one thread. After an error this object must not be
// used again. Another collective on `group` during a backward pass must come between the same two
// gradients on all ranks; use another group (Group::split()) to avoid this rule.
class DataParallel : public Exchange {
 public:
  DataParallel(torch::nn::Module& module, comm::Group group,
               const DataParallelOptions& options = {});
  ~DataParallel() override;

  void expect_rate(double rate) override;
  // Gathers 8 bytes per rank. Buffers of this step come from the lowest rank with weight > 0.
  bool begin_step(double weight) override;
  // Blocks until gradients (and buffers) are equal on all ranks. Throws Error(usage) naming the
  // parameters that got no gradient, or that were frozen or added since construction, and rethrows
  // errors of the group's collectives.
  void finish_backward() override;
  // Every rank has the same gradients, so clip_grad_norm() does not communicate.
  std::vector<at::Tensor> gradients() const override;
  std::vector<optim::Parameter> parameters() const override;
  // With crosses_barrier, `update` must be valid until fetch_states() or synchronize_replicas() has
  // returned, or the next step has begun. It is called once for each bucket, with only that
  // bucket's parameters having a .grad, and must step those as it would together with all others.
  // Until then no other code may use parameters, and parameters have no .grad; gradients() and
  // state() throw Error(usage).
  void step_by(const std::function<void()>& update) override;
  // Broadcasts rank 0's buffers unless broadcast_buffers is set. Parameters are equal after each
  // step.
  void synchronize_replicas() override;
  // Finishes the step.
  void fetch_states() override;
  // Returns the codec's state and, once it is final, the order of parameters in buckets.
  optim::NamedTensors state() const override;
  // Makes new buckets. Must be called outside of a step.
  void load_state(const optim::NamedTensors& state) override;
  void continue_step() override;
  bool set_syncing(bool syncing) override;

  // Call it after parameters were frozen, unfrozen, added or cast (the same on all ranks), outside
  // of a step. Checks and copies as construction does, and makes new buckets. Gradients keep their
  // values; the codec's state is dropped. Blocks.
  void refresh();

  // Null without codec. Must not be called during a backward pass.
  comm::Codec* codec() const { return codec_.get(); }
  std::vector<std::string> bucket_order() const;

  size_t bucket_count() const;
  // Returns the number of buckets handed to the group since the last finish_backward(). A value
  // above 0 during a backward pass shows overlap.
  size_t launched() const;

 private:
  void attach();
  void make_reducer();
  // Throws Error(usage), which names the call, while means are missing.
  void require_means(const char* call) const;

  torch::nn::Module& module_;
  nn::ModuleWatch watch_;
  comm::Group group_;
  DataParallelOptions options_;
  std::shared_ptr<comm::Codec> codec_;
  std::unique_ptr<Reducer> reducer_;
  std::shared_ptr<CrossBarrier> crossing_;  // with crosses_barrier and several ranks
  nn::WrapperGuard waiting_;                // the same
  int buffers_from_ = 0;  // the rank whose buffers are broadcast at the end of this step
};

}  // namespace troika::parallel
