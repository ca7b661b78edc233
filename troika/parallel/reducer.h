// Averages gradients over the ranks while the backward pass makes them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "troika/base/trace.h"
#include "troika/comm/group.h"
#include "troika/nn/state.h"
#include "troika/parallel/buckets.h"
#include "troika/parallel/hook_thread.h"

namespace troika::parallel {

struct ReducerOptions {
  int64_t bucket_bytes = 25 << 20;
  int64_t first_bucket_bytes = 1 << 20;
  bool find_unused_parameters = false;
  bool static_graph = false;
  std::vector<std::string> bucket_order = {};
  // Where not empty, in place of all about sizes and order: the names in each bucket.
  std::vector<std::vector<std::string>> buckets = {};
  // Unless `all`, buckets are made once, and after finish() parameters have no .grad: means are in
  // Bucket::own_block.
  Keeps keeps = Keeps::all;
  // Unless `all`, of make_buckets().
  int64_t piece_multiple = 1;
  // Unless `all`: ranks of other groups that keep the same blocks, over which these are averaged
  // too.
  std::optional<comm::Group> copies = {};
  Trace* trace = nullptr;
};

// Owns the buckets of a fixed list of parameters. One rank by itself that keeps all and has no hook
// has none: there is nothing to average, and gradients stay where autograd puts them. All ranks
// must make the same calls. Gradient
// hooks may come from several threads of autograd; everything else is for one thread. What a hook
// throws comes out of backward(). After that, or an error of finish(), other calls throw
// Error(usage), since buckets may be averaged on some ranks and not on others.
class Reducer {
 public:
  // `parameters` are equal on all ranks but for their values. Without hook, buckets are averaged on
  // the group's own thread.
  Reducer(const comm::Group& group, state::StateDict parameters, const ReducerOptions& options,
          BucketHook hook);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // While off, gradients are only added up.
  void set_syncing(bool syncing) { syncing_ = syncing; }
  bool syncing() const { return syncing_; }
  // Parameters that have a gradient got it in earlier passes of this step.
  void continue_step();
  // For the step that begins: the factor of this rank's gradients before the mean over
  // ranks. A rank with factor 0 gives zeros, and needs no backward pass. Throws Error(usage) once
  // buckets of the step are on their way.
  void set_factor(double factor);
  // Ends a step. Throws Error(usage) naming the parameters without gradient.
  void finish();

  // Throws Error(usage) naming the first difference of `parameters` to those given at construction.
  void check_unchanged(const state::StateDict& parameters) const;
  // Flat tensors that hold all gradients between them, after finish(); of Keeps::all.
  std::vector<at::Tensor> gradients() const;
  // The names of parameters in the order in which buckets hold them.
  std::vector<std::string> order() const;
  // Not before the end of the first step, where gradients' arrival decides.
  bool order_is_final() const { return rebuilt_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  // In the order of the parameters given at construction.
  const std::vector<Slot>& slots() const { return slots_; }
  size_t launched() const;

 private:
  void require_whole() const;
  void on_gradient(size_t index);
  void take(size_t index);
  void open(Bucket& bucket);
  void fill(Slot& slot);
  void mark_ready(const Bucket& bucket);
  void trace_average(const Bucket& bucket, const char* track, const comm::Work::Times& times);
  void launch_full_buckets();
  void launch(Bucket& bucket);
  void average_scattered();
  void average_block(Bucket& bucket);
  void take_result(Bucket& bucket);
  void settle_missing();
  void finish_alone();
  void take_results();
  // One for each slot; empty: all are used.
  std::vector<bool> used_anywhere();
  void begin_step();
  void rebuild();

  comm::Group group_;
  const ReducerOptions options_;
  const bool alone_;  // without buckets
  std::vector<Slot> slots_;
  std::vector<Bucket> buckets_;
  std::unique_ptr<HookThread> hook_;  // none: plain averages
  mutable std::mutex mutex_;          // of gradient hooks
  std::vector<size_t> arrival_;       // slots in the order of their first gradients, until rebuilt
  std::vector<bool> static_use_;      // static_graph: which slots got a gradient on some rank
  size_t launched_ = 0;
  size_t averaged_ = 0;  // of them, on their way to the copies
  size_t taken_ = 0;     // of them, whose results are here
  double factor_ = 1;
  bool syncing_ = true;
  bool failed_ = false;
  bool rebuilt_ = false;  // or never will be: buckets stay as they are
  bool counted_ = false;  // static_graph: this rank knows how many gradients to expect
};

}  // namespace troika::parallel
