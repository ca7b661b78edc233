// Averages gradients over the ranks during the backward pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "troika/comm/group.h"
#include "troika/nn/state.h"
#include "troika/parallel/bucket_averages.h"
#include "troika/parallel/buckets.h"
#include "troika/parallel/reducer_options.h"

namespace troika::parallel {

// Fills buckets with the gradients of a fixed list of parameters, and averages the buckets. A
// single rank with Keeps::all and without hook has no buckets: there is nothing to average, and
// gradients stay where autograd puts them. All ranks must make the same calls. Gradient hooks may
// run on several threads of autograd; all other calls come from one thread. Errors in a gradient
// hook are thrown by backward(). After such an error, or an error in finish(), other calls throw
// Error(usage), since some ranks may have averaged buckets that others have not.
class Reducer {
 public:
  // `parameters` must be equal on all ranks except for their values. Without `hook`, buckets are
  // averaged on the group's own thread.
  Reducer(const comm::Group& group, state::StateDict parameters, const ReducerOptions& options,
          BucketHook hook);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // While off, backward passes only accumulate gradients.
  void set_syncing(bool syncing) { syncing_ = syncing; }
  bool syncing() const { return syncing_; }
  // Marks parameters with a defined .grad as used by earlier micro-batches of this step.
  void continue_step();
  // Sets the factor by which this rank's gradients are multiplied before the mean over ranks, for
  // the step that begins. A rank with factor 0 contributes zeros and needs no backward pass. Throws
  // Error(usage) if buckets of the step were already launched.
  void set_factor(double factor);
  // Ends a step: blocks until all buckets are averaged. Throws Error(usage) naming the parameters
  // without gradient.
  void finish();
  // Whether the last finish() has left sums, of which take_mean() was not called for all. Until
  // then there must be no backward pass.
  bool has_left_sums() const { return left_sums_ > 0; }
  // Gives the parameters of a bucket whose sum was left, and is there now, the mean as .grad.
  void give_mean(size_t bucket);
  // Takes it from them again.
  void take_mean(size_t bucket);

  // Throws Error(usage) naming the first difference between `parameters` and those given at
  // construction.
  void check_unchanged(const state::StateDict& parameters) const;
  // Returns flat tensors that together hold all gradients, after finish(). Keeps::all only.
  std::vector<at::Tensor> gradients() const;
  // Returns the names of the parameters in the order of buckets.
  std::vector<std::string> order() const;
  // False until the end of the first step if the order depends on the arrival of gradients.
  bool order_is_final() const { return rebuilt_; }
  const std::vector<Bucket>& buckets() const { return averages_.buckets(); }
  // In the order of the parameters given at construction.
  const std::vector<GradientSlot>& slots() const { return slots_; }
  size_t launched() const;

 private:
  std::vector<std::vector<size_t>> first_members() const;
  void require_whole() const;
  void on_gradient(size_t index);
  void take(size_t index);
  void fill(GradientSlot& slot);
  void fill_missing();
  void finish_alone();
  void take_results();
  // Returns for each slot whether some rank used it; empty: all are used.
  std::vector<bool> used_anywhere();
  void begin_step();
  void rebuild();

  comm::Group group_;
  const ReducerOptions options_;
  const bool alone_;  // without buckets
  std::vector<GradientSlot> slots_;
  BucketAverages averages_;
  mutable std::mutex mutex_;      // for gradient hooks
  std::vector<size_t> arrival_;   // slots by arrival of their first gradients; until rebuilt
  std::vector<bool> static_use_;  // static_graph: the slots that got a gradient on some rank
  double factor_ = 1;
  bool syncing_ = true;
  bool failed_ = false;
  bool rebuilt_ = false;  // the order of buckets is final
  size_t left_sums_ = 0;
  bool counted_ = false;  // static_graph: this rank knows how many gradients to expect
};

}  // namespace troika::parallel
