// Activations out of a device's memory between the forward and the backward pass: those of a CPU in
// files, where there is more disk than memory, those of a GPU in host memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "troika/base/mapped_file.h"
#include "troika/compat/saved_tensors.h"
#include "troika/nn/block_wrapper.h"

namespace troika::nn {

// While the result lives, what the blocks of the model save goes through `to`. The model must
// outlive the result. Throws Error(usage) where the model is offloaded already.
[[nodiscard]] WrapperGuard offload(Model& model, std::shared_ptr<compat::SavedTensorHooks> to);

// Tensors that operators save go to files in a folder, and come back page by page when needed,
// with the same bits and strides. Parameters, what is not on a CPU, small tensors and tensors with
// gaps stay where they are. Of blocks that are recomputed, inputs are what is saved:
//
//   const auto offloaded = nn::offload(*model, std::make_shared<nn::ActivationOffload>(folder));
//   loss(model->forward(inputs)).backward();
//
// Without a model of blocks, a compat::SavedTensorGuard around the forward pass does it.
//
// Files grow by need, are used again by later passes, and are gone after any exit. pack() throws
// Error (room `base`) where the disk is full. For one thread's passes.
class ActivationOffload : public compat::SavedTensorHooks {
 public:
  static constexpr int64_t kLeastBytes = 1 << 16;

  explicit ActivationOffload(std::filesystem::path folder);
  ~ActivationOffload() override;

  std::function<at::Tensor()> pack(const at::Tensor& tensor) override;

  // Now in files.
  int64_t bytes() const;

 private:
  class Arena;
  struct Slot;
  struct Known;

  std::shared_ptr<Slot> slot_for(const at::Tensor& tensor);

  std::shared_ptr<Arena> arena_;
  // By the memory of tensors that were saved, so that what two operators save is written once.
  std::map<const void*, Known> known_;
  std::weak_ptr<Slot> last_;
};

// Tensors that operators save on a GPU go to page-locked host memory, and come back when needed,
// with the same bits (PyTorch's torch.autograd.graph.save_on_cpu). Copies are in the order of the
// stream that computes. What stays is as above, but for CPUs in place of GPUs. From any thread.
class HostOffload : public compat::SavedTensorHooks {
 public:
  std::function<at::Tensor()> pack(const at::Tensor& tensor) override;
};

}  // namespace troika::nn
