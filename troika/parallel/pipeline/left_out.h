// Tensors of a model that other ranks hold.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "troika/compat/deferred_init.h"

namespace torch::nn {
class Module;
}

namespace troika::parallel {

// Whether a tensor has been left out by LeftOut: it has no memory of its own, reads as NaN (numbers
// that are not floating-point read as 0), and cannot be written to. A tensor of one element is
// never recognised.
bool is_left_out(const at::Tensor& tensor);
// Whether a tensor of the module is left out.
bool lacks_tensors(const torch::nn::Module& module);

// Takes a tensor's memory and drops its gradient: it is left out then, with these sizes.
void leave_out(const at::Tensor& tensor, at::IntArrayRef sizes);

// Gives memory, with the values of left-out tensors, to all tensors of a module that are left out.
void give_left_out_memory(torch::nn::Module& module);

// Takes the memory of a module's parameters and buffers, except for those that this rank holds.
class LeftOut {
 public:
  // `held` are the names of the tensors that this rank holds. With `values`, makes the values of
  // these tensors first, one after another; at any time only they and one other tensor have memory.
  // The module must outlive this object.
  LeftOut(torch::nn::Module& module, const std::set<std::string>& held,
          compat::DeferredInit* values);

  // Gives the tensors memory in the layout that they had. Their values are undefined.
  void restore();
  // Whether restore() was called.
  bool is_restored() const { return is_restored_; }

 private:
  struct Tensor {
    at::Tensor tensor;
    std::vector<int64_t> strides;  // that it had
  };
  std::vector<Tensor> tensors_;
  bool is_restored_ = false;
};

}  // namespace troika::parallel
