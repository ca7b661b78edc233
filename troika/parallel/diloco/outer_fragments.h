// The outer weights of DiLoCo, in fragments that step at different times.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "troika/optim/optimizer.h"

namespace torch::nn {
class Module;
}

namespace troika::parallel {

struct OuterOptions {
  double lr = 0.7;
  double momentum = 0.9;  // of Nesterov
  int64_t fragments = 1;  // at most the number of trained parameters
  double mixing = 0;      // the part of the module's own values in its values after a step
};

// Outer weights of a module's trained parameters, and outer values of its buffers of floating
// types. Each fragment has whole parameters: the largest first, each goes to the fragment with the
// fewest elements so far.
//
// The module holds either its own values, which it trains, or the outer ones. Does not communicate.
class OuterFragments {
 public:
  // The outer values are those of the module. Throws Error(usage) for options out of range.
  OuterFragments(const torch::nn::Module& module, const OuterOptions& options);

  int64_t count() const { return static_cast<int64_t>(fragments_.size()); }
  const std::vector<optim::Parameter>& parameters() const { return parameters_; }

  // Returns new tensors: the outer weights of a fragment minus the module's, and the module's
  // buffers.
  std::vector<at::Tensor> changes(int64_t fragment) const;
  std::vector<at::Tensor> buffers() const;
  // Steps a fragment's outer weights by the mean of changes(), and mixes them into the module; the
  // means of buffers become the module's, and the outer ones.
  void step(int64_t fragment, const std::vector<at::Tensor>& changes,
            const std::vector<at::Tensor>& buffers);

  // Gives the module the outer values; nothing happens if it has them.
  void show();
  // Gives the module back its own values.
  void hide();
  bool is_shown() const { return !own_.empty(); }
  // The outer values become the module's own, too.
  void adopt();

  // "anchor.<name>", the outer values, or with is_shown() "own.<name>", the module's own, and
  // "outer.*". The tensors share memory with this object.
  optim::NamedTensors state() const;
  // The entries "outer.*" of state() under their own names: the states of the outer optimizer.
  optim::NamedTensors optimizer_state() const { return optimizer_->state(); }
  // Takes its entries out of `state`. The module must hold the values that it had then. Returns the
  // name of an entry that is missing or of another shape, and then changes nothing; otherwise
  // empty.
  std::string load_state(std::map<std::string, at::Tensor>& state);
  // The names of a fragment's parameters and of the buffers, in the order of changes() and
  // buffers().
  std::vector<std::string> change_names(int64_t fragment) const;
  std::vector<std::string> buffer_names() const;

 private:
  struct Value {
    std::string name;
    at::Tensor module, outer;
  };

  std::vector<optim::Parameter> parameters_;
  std::vector<Value> weights_, buffers_;
  std::vector<std::vector<size_t>> fragments_;       // indices of weights
  std::unique_ptr<optim::FlatOptimizer> optimizer_;  // of the outer weights
  double mixing_ = 0;
  std::vector<at::Tensor>
      own_;  // the module's own weights and buffers while it holds the outer ones
};

}  // namespace troika::parallel
