// Hooks on the tensors that operators save for their backward passes. LibTorch offers these hooks
// only to Python, but its autograd engine calls them.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

namespace troika::compat {

class SavedTensorHooks {
 public:
  virtual ~SavedTensorHooks() = default;
  // Called when an operator saves `tensor`. Returns a function that restores its values; the
  // function is called each time they are needed, on the thread that needs them, and is destroyed
  // with the graph.
  virtual std::function<at::Tensor()> pack(const at::Tensor& tensor) = 0;
};

// While this guard exists, tensors that this thread saves go through `hooks`, which must outlive
// it. Guards nest: only the innermost hooks are called. Make the first guard of a process when no
// backward pass is running.
class [[nodiscard]] SavedTensorGuard {
 public:
  explicit SavedTensorGuard(SavedTensorHooks& hooks);
  ~SavedTensorGuard();
  SavedTensorGuard(const SavedTensorGuard&) = delete;
  SavedTensorGuard& operator=(const SavedTensorGuard&) = delete;
};

// Saves a tensor as an operator does: through the active hooks.
class SavedTensor {
 public:
  explicit SavedTensor(const at::Tensor& tensor);
  ~SavedTensor();
  // Returns the tensor with its place in the graph.
  at::Tensor unpack() const;

 private:
  struct Saved;
  std::unique_ptr<Saved> saved_;
};

// Whether pack() may throw for this tensor. It may not if a torch::autograd::Function saves its own
// output: the function and its output keep each other alive until everything is saved.
bool may_throw_at(const at::Tensor& tensor);

// Whether this LibTorch supports the hooks; tested once.
bool saved_tensor_hooks_work();

}  // namespace troika::compat
