// Hooks on the tensors that operators keep for their backward passes. LibTorch gives such hooks to
// Python alone, but asks its autograd engine for them.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

namespace troika::compat {

class SavedTensorHooks {
 public:
  virtual ~SavedTensorHooks() = default;
  // Called as an operator saves `tensor`; gives what brings its values back, which is called each
  // time they are needed, on the thread that needs them, and destroyed with the graph.
  virtual std::function<at::Tensor()> pack(const at::Tensor& tensor) = 0;
};

// While it lives, what this thread saves goes through `hooks`, which must outlive it. Guards nest:
// the innermost is asked. The first of a process should come when no backward pass is under way.
class [[nodiscard]] SavedTensorGuard {
 public:
  explicit SavedTensorGuard(SavedTensorHooks& hooks);
  ~SavedTensorGuard();
  SavedTensorGuard(const SavedTensorGuard&) = delete;
  SavedTensorGuard& operator=(const SavedTensorGuard&) = delete;
};

// A tensor saved as an operator saves it: through the hooks in force.
class SavedTensor {
 public:
  explicit SavedTensor(const at::Tensor& tensor);
  ~SavedTensor();
  // With its place in the graph.
  at::Tensor unpack() const;

 private:
  struct Saved;
  std::unique_ptr<Saved> saved_;
};

// Whether pack() may throw for this tensor. Not where a torch::autograd::Function saves its own
// output: the two keep each other alive until all is saved.
bool may_throw_at(const at::Tensor& tensor);

// Whether this LibTorch honours such hooks: tried out once.
bool saved_tensor_hooks_work();

}  // namespace troika::compat
