// Offload of activations between the forward and the backward pass: from a CPU's memory to files,
// where there is more disk than memory, and from a GPU's memory to host memory.
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

// Passes the tensors that the model's blocks save through `to` during the result's lifetime. The
// model must outlive the result. Throws Error(usage) if the model is offloaded already.
[[nodiscard]] WrapperGuard offload(Model& model, std::shared_ptr<compat::SavedTensorHooks> to);

// Tensors of fewer bytes are not offloaded.
inline constexpr int64_t kLeastOffloadedBytes = 1 << 16;

// Whether a tensor with this memory layout is offloaded if it has at least kLeastOffloadedBytes
// bytes: tensors with gaps stay, as do parameters.
bool may_be_offloaded(const at::Tensor& tensor);

// Writes tensors that operators save to files in a folder. They are read back page by page when
// needed, with the same bits and strides. Parameters, tensors outside CPU memory, small tensors and
// tensors with gaps stay in memory. For blocks that are recomputed, the inputs are what is saved:
//
//   const auto offloaded = nn::offload(*model, std::make_shared<nn::ActivationOffload>(folder));
//   loss(model->forward(inputs)).backward();
//
// Without a nn::Model, use a compat::SavedTensorGuard around the forward pass.
//
// Files grow as needed, are reused once their tensors are gone, and are removed at any exit. pack()
// throws Error (room `base`) if the disk is full. For forward and backward passes of one thread.
class ActivationOffload : public compat::SavedTensorHooks {
 public:
  explicit ActivationOffload(std::filesystem::path folder);
  ~ActivationOffload() override;

  std::function<at::Tensor()> pack(const at::Tensor& tensor) override;

  // Returns the bytes now in files.
  int64_t bytes() const;

 private:
  class Arena;
  struct FileSlot;
  struct Known;

  std::shared_ptr<FileSlot> slot_for(const at::Tensor& tensor);

  std::shared_ptr<Arena> arena_;
  // Keyed by the saved tensor's memory, so that memory saved by two operators is written once.
  std::map<const void*, Known> known_;
  size_t live_known_ = 0;  // after the last removal of those that are gone
  std::weak_ptr<FileSlot> last_;
};

// Copies tensors that operators save on a GPU to page-locked host memory, and back when needed,
// with the same bits (PyTorch's torch.autograd.graph.save_on_cpu). Copies are ordered on the
// computing stream. Tensors on the CPU stay, as do parameters, small tensors and tensors with gaps.
// Can be used from any thread.
class HostOffload : public compat::SavedTensorHooks {
 public:
  std::function<at::Tensor()> pack(const at::Tensor& tensor) override;
};

}  // namespace troika::nn
