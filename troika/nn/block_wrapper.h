// Wrappers around the blocks of a model, for recomputation, sharding and offload. Wrappers are
// nested in a fixed order, independent of when they were added:
//
//   offload ∘ recompute ∘ gather ∘ context ∘ tensor ∘ block
//
//   const nn::WrapperGuard guard(*model, std::make_shared<MyWrapper>());
//   loss(model->forward(inputs)).backward();
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "troika/nn/block.h"

namespace troika::nn {

class BlockWrapper;
class Model;
class SplitOutput;
struct OutputLoss;

// From outermost to innermost.
enum class WrapperKind {
  offload,    // where tensors saved for backward passes are kept
  recompute,  // whether they are kept or recomputed
  gather,     // makes parameters whole while a block runs (ZeRO-3)
  context,    // ranks compute the tokens of a sample together (context parallelism)
  tensor,     // ranks compute a block together (tensor parallelism)
};
inline constexpr size_t kWrapperKinds = 5;

// One run of blocks [begin, end) of a model.
struct BlockRun {
  size_t begin = 0;
  size_t end = 0;
  // The block at which the recomputation starts before the backward pass of block end - 1. Equals
  // end - 1 unless that block is the last of a segment that is recomputed together.
  size_t backward_from = 0;
  // In a recomputation, the end of the blocks that are being recomputed; 0 in the forward pass.
  size_t again_until = 0;
  // The loss that the model's last block returns instead of outputs (output_layer.h); null:
  // outputs.
  std::shared_ptr<const OutputLoss> loss = nullptr;
  // Computes the model's output layer if a wrapper of kind tensor sets it; null: the layer itself.
  std::shared_ptr<const SplitOutput> output = nullptr;
};

// The blocks of a model, inside the remaining wrappers. A copy keeps these wrappers alive, so it
// may be called in a backward pass. It does not keep the model alive.
class InnerBlocks {
 public:
  // Runs the blocks. A single block takes and gives the tensors named in Block; several blocks take
  // Wiring::into() and give Wiring::out_of(). With a loss, the last block gives that. Throws
  // Error(usage) for a wrong number of tensors.
  Tensors operator()(const BlockRun& run, Tensors inputs) const;

  const Model& model() const { return *model_; }

 private:
  friend class Model;

  // Outermost first; null for a kind without wrapper.
  using Wrappers = std::array<std::shared_ptr<BlockWrapper>, kWrapperKinds>;

  InnerBlocks(const Model& model, std::shared_ptr<const Wrappers> wrappers, size_t level)
      : model_(&model), wrappers_(std::move(wrappers)), level_(level) {}

  Tensors run_each(const BlockRun& run, Tensors&& inputs) const;
  Tensors run_one(const BlockRun& run, Tensors&& inputs) const;
  // Runs one block through the wrappers from `level` on.
  Tensors run_in_block(size_t level, const BlockRun& run, Tensors&& inputs) const;

  const Model* model_;
  std::shared_ptr<const Wrappers> wrappers_;
  size_t level_;  // the outermost wrapper that is still to be called
};

class BlockWrapper {
 public:
  virtual ~BlockWrapper() = default;
  // Must always return the same kind.
  virtual WrapperKind kind() const = 0;
  // Called in place of `next(run, inputs)`, and must run the same blocks through `next`. Wrappers
  // of kinds gather, context and tensor run one block at a time. The other kinds get all blocks of
  // a forward pass, and may call `next` once for all blocks or once per block. Runs on the thread
  // of the forward pass or, in a recomputation, of the backward pass. An exception ends the pass.
  virtual Tensors run(const BlockRun& run, Tensors inputs, const InnerBlocks& next) = 0;
};

// Keeps a wrapper around the blocks of a model during its lifetime. Graphs of earlier forward
// passes still call the wrapper when their backward passes recompute blocks.
class WrapperGuard {
 public:
  WrapperGuard() = default;
  // Must not be called during a forward pass of the model. The model must outlive the guard. Throws
  // Error(usage) if the model already has a wrapper of that kind.
  WrapperGuard(Model& model, std::shared_ptr<BlockWrapper> wrapper);
  ~WrapperGuard() { reset(); }
  WrapperGuard(WrapperGuard&& other) noexcept
      : model_(std::exchange(other.model_, nullptr)), kind_(other.kind_) {}
  WrapperGuard& operator=(WrapperGuard&& other) noexcept;

  // Removes the wrapper.
  void reset();

 private:
  Model* model_ = nullptr;
  WrapperKind kind_ = WrapperKind::offload;
};

}  // namespace troika::nn
