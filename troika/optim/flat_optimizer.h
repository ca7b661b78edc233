// The base of all optimizers: parameters, states, learning rate, and saving.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "troika/base/mapped_file.h"
#include "troika/optim/device_step.h"
#include "troika/optim/flat_parameters.h"
#include "troika/optim/kernels/kernels.h"
#include "troika/state/state_dict.h"

namespace troika::optim {

using NamedTensors = state::StateDict;

// Steps parameters by their current gradients. A parameter without a gradient is skipped and its
// step count does not increase, as in PyTorch. A step passes once over the memory of parameters,
// gradients and states, on all of LibTorch's threads; the bits depend neither on the number of
// threads nor on the processor. For parameters on another device than the CPU, states are on that
// device, and a step is queued on its current stream. Not thread-safe.
class FlatOptimizer {
 public:
  virtual ~FlatOptimizer() = default;
  FlatOptimizer(const FlatOptimizer&) = delete;
  FlatOptimizer& operator=(const FlatOptimizer&) = delete;

  void step();
  // Fills the gradients with zeros in place; undefined ones stay undefined.
  void zero_grad();

  double learning_rate() const { return rate_; }
  void set_learning_rate(double rate) { rate_ = rate; }

  const FlatParameters& parameters() const { return parameters_; }

  // For sharded parameters: replaces sums over this rank's shards, float64 [parameters, n], by the
  // sums over all ranks' shards. Methods whose rates depend on norms of whole parameters call it
  // inside step(), once, on every rank. Not set: parameters are whole.
  using CompleteSums = std::function<void(const at::Tensor& sums)>;
  void complete_sums_by(CompleteSums complete) { complete_ = std::move(complete); }

  // Returns all states as `<parameter>.<state>` under PyTorch's names (exp_avg, exp_avg_sq,
  // momentum_buffer, sum, step), in the shapes of their parameters. They share memory with the
  // optimizer and are zero before the first step. If parameters are shards of larger ones, each
  // entry has a box: the corresponding part of the whole parameter's state, counted in blocks if
  // one number of the state covers several elements. A state without dimensions (a step count)
  // belongs to the whole parameter; its box is empty on a rank that owns no element of the
  // parameter.
  NamedTensors state() const;
  // Returns the number of consecutive elements of a parameter that one number of `<state>` covers.
  virtual int64_t elements_each(std::string_view /*state*/) const { return 1; }
  // Copies in tensors of the same names and shapes. Throws Error(usage), naming a tensor that is
  // missing, unexpected or of another shape or type, and then changes nothing.
  void load_state(const NamedTensors& state);

 protected:
  // `flat_states` are the names of states with one number per element. `counts` is for methods that
  // use a parameter's step count. Flat states are in memory or, if `offload` is not empty, in files
  // in that folder; then only the parts that threads work on are in memory.
  FlatOptimizer(FlatParameters parameters, double rate, std::vector<std::string> flat_states,
                bool counts, const std::filesystem::path& offload = {});

  // Steps these ranges, one per parameter that has a gradient.
  virtual void update(const std::vector<FlatRange>& ranges) = 0;
  // The same for parameters on another device than the CPU, with the gradient of each range: the
  // ranges' pointers are device memory. Throws Error(usage) by default.
  virtual void update_on_device(const std::vector<FlatRange>& ranges,
                                const std::vector<at::Tensor>& gradients);
  // Returns a parameter's states besides the flat ones, by state name.
  virtual NamedTensors more_state(size_t /*index*/) const { return {}; }

  kernels::Type kernel_type() const;
  // Returns the parameter's step count, including the current step.
  int64_t steps(size_t index) const { return steps_.data_ptr<int64_t>()[index]; }
  double weight_decay_of(size_t index, double weight_decay) const {
    return parameters_.list()[index].decay ? weight_decay : 0.0;
  }
  // Returns the tensors of the ranges numbered `chosen`, with their flat states.
  DeviceTensors device_tensors(const std::vector<FlatRange>& ranges,
                               const std::vector<at::Tensor>& gradients,
                               const std::vector<size_t>& chosen) const;
  // Returns a range with its flat states; the first one is ParameterSpan::first.
  kernels::ParameterSpan span(const FlatRange& range) const;
  void complete_sums(const at::Tensor& sums) const {
    if (complete_) complete_(sums);
  }
  // Calls `work(i)` for each range, on LibTorch's threads.
  void parallel_over(const std::vector<FlatRange>& ranges,
                     const std::function<void(size_t)>& work) const;

 private:
  at::Tensor make_flat(const std::filesystem::path& offload);
  NamedTensors state_of(size_t index) const;

  FlatParameters parameters_;
  double rate_;
  CompleteSums complete_;
  // The offloaded memory of each flat state; empty without offload.
  std::vector<std::shared_ptr<const MappedFile>> files_;
  NamedTensors flat_;
  bool counts_;
  at::Tensor steps_;  // [parameters]
};

}  // namespace troika::optim
