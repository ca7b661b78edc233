// The base of all optimizers: parameters, states, the rate, and how they are saved.
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

// Steps over the gradients that its parameters have at that moment; a parameter without one is left
// out, and its count of steps does not move, as in PyTorch. One pass over the memory of parameters,
// gradients and states, shared among LibTorch's threads; the bits do not depend on their number nor
// on the processor. On another device than the CPU, states lie there, and a step is queued on its
// current stream. Not for use by several threads at a time.
class FlatOptimizer {
 public:
  virtual ~FlatOptimizer() = default;
  FlatOptimizer(const FlatOptimizer&) = delete;
  FlatOptimizer& operator=(const FlatOptimizer&) = delete;

  void step();
  // Fills the gradients with zeros where they lie; undefined ones stay so.
  void zero_grad();

  double learning_rate() const { return rate_; }
  void set_learning_rate(double rate) { rate_ = rate; }

  const FlatParameters& parameters() const { return parameters_; }

  // For parameters that are pieces of larger ones, of which other ranks step the rest: what makes
  // sums over this rank's pieces, float64 [parameters, n], those over all ranks'. Methods whose
  // rates follow norms of whole parameters call it inside step(), once, on every rank. Without it
  // parameters are whole.
  using CompleteSums = std::function<void(const at::Tensor& sums)>;
  void complete_sums_by(CompleteSums complete) { complete_ = std::move(complete); }

  // All states as `<parameter>.<state>` under PyTorch's names (exp_avg, exp_avg_sq,
  // momentum_buffer, sum, step), in the shapes of their parameters. They share memory with the
  // optimizer. They are zero before the first step. Of parameters that are parts of larger ones,
  // entries have boxes: the same part of the whole parameter's state, in blocks where each number
  // is of several elements. A state of no dimension (a count of steps) is that of the whole
  // parameter, and its box is empty on a rank that has no element of it.
  NamedTensors state() const;
  // How many elements of a parameter, one after another, each number of this `<state>` is of.
  virtual int64_t elements_each(std::string_view /*state*/) const { return 1; }
  // Copies tensors of the same names and shapes in. Throws Error(usage), naming what is missing,
  // unexpected or of another shape or kind of number, and changes nothing then.
  void load_state(const NamedTensors& state);

 protected:
  // `flat_states` are names of states of one number per element. `counts` is for methods that need
  // to know how many steps a parameter has made. Flat states are in memory, or in files in the
  // folder `offload` if there is one: no more of them than threads work on is in memory then.
  FlatOptimizer(FlatParameters parameters, double rate, std::vector<std::string> flat_states,
                bool counts, const std::filesystem::path& offload = {});

  // Makes the step for these pieces, one per parameter that has a gradient.
  virtual void update(const std::vector<Piece>& pieces) = 0;
  // The same for parameters that are not on the CPU, with the gradient of each piece: memory that
  // pieces point to is not the host's. Throws Error(usage) by default.
  virtual void update_on_device(const std::vector<Piece>& pieces,
                                const std::vector<at::Tensor>& gradients);
  // States beyond the flat ones of one parameter, by the state's own name.
  virtual NamedTensors more_state(size_t /*index*/) const { return {}; }

  kernels::Type kernel_type() const;
  // Steps the parameter has made, this one included.
  int64_t steps(size_t index) const { return steps_.data_ptr<int64_t>()[index]; }
  double weight_decay_of(size_t index, double weight_decay) const {
    return parameters_.list()[index].decay ? weight_decay : 0.0;
  }
  // The pieces numbered `chosen` with their flat states.
  DeviceTensors device_tensors(const std::vector<Piece>& pieces,
                               const std::vector<at::Tensor>& gradients,
                               const std::vector<size_t>& chosen) const;
  // A piece with its flat states, the first as Span::first.
  kernels::Span span(const Piece& piece) const;
  void complete_sums(const at::Tensor& sums) const {
    if (complete_) complete_(sums);
  }
  // Calls `work(i)` for each of the pieces, on LibTorch's threads.
  void share(const std::vector<Piece>& pieces, const std::function<void(size_t)>& work) const;

 private:
  at::Tensor make_flat(const std::filesystem::path& offload);
  NamedTensors state_of(size_t index) const;

  FlatParameters parameters_;
  double rate_;
  CompleteSums complete_;
  // The offloaded memory of each flat state; none where states are not offloaded.
  std::vector<std::shared_ptr<const MappedFile>> files_;
  NamedTensors flat_;
  bool counts_;
  at::Tensor steps_;  // [parameters]
};

}  // namespace troika::optim
