// A backward pass in two parts: the gradients of inputs first, those of parameters later.
#pragma once

#include <ATen/core/Tensor.h>

#include <torch/csrc/autograd/edge.h>

#include <utility>
#include <vector>

#include "troika/compat/autograd.h"

namespace troika::compat {

// Cuts a graph at the nodes through which both a gradient of an input and a gradient of a parameter
// are computed: linear layers, convolutions, products of attention. The first part keeps the
// gradients that arrive at these nodes, and propagates them only towards the inputs. The second
// part propagates them towards the parameters (Qi et al. 2024, arXiv 2401.10241, section 2).
// Together, both parts compute what one backward pass computes, with the same operators on the same
// numbers. A node that computes both gradients in one operator runs twice, and must not change its
// saved tensors.
class SplitBackward {
 public:
  // Runs the first part. `gradients` are those of `roots`; empty for a single root of one element.
  // `inputs` are leaves of the graph. Between the parts, only what the second part needs is kept
  // of the graph. Without an input, the first part does nothing.
  SplitBackward(const std::vector<at::Tensor>& roots, const std::vector<at::Tensor>& gradients,
                const std::vector<at::Tensor>& inputs);

  // Returns the gradients of the inputs; undefined for those that the roots do not depend on.
  // Called once.
  std::vector<at::Tensor> take_inputs() { return std::move(of_inputs_); }

  // Returns the gradients that the second part starts from. Several may share memory.
  std::vector<at::Tensor> gradients() const;

  // Runs the second part: adds to the parameters' .grad and calls their hooks. Called once.
  void run_weights();

 private:
  // A backward pass from some edges, with their gradients, to some parameters.
  struct Part {
    torch::autograd::edge_list from;
    std::vector<at::Tensor> gradients;
    torch::autograd::edge_list to;
  };

  std::vector<at::Tensor> of_inputs_;
  std::vector<Part> parts_;
};

}  // namespace troika::compat
