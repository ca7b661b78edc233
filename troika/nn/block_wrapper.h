// What is done around the blocks of a model while they run: recomputation, sharding and offloading
// are wrappers, which a model runs its blocks through in one order, whoever came first:
//
//   offload ∘ recompute ∘ gather ∘ tensor ∘ block
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
struct OutputLoss;

// From the outermost to the innermost.
enum class WrapperKind {
  offload,    // where tensors are kept that blocks save for their backward passes
  recompute,  // whether they are kept, or computed again
  gather,     // parameters are whole while a block runs (ZeRO-3)
  tensor,     // ranks compute a block together
};
inline constexpr size_t kWrapperKinds = 4;

// One run of blocks [begin, end) of a model.
struct BlockRun {
  size_t begin = 0;
  size_t end = 0;
  // The block that is computed again first, before the backward pass of block end - 1; that block
  // itself, unless it is the last of several that are computed again together.
  size_t backward_from = 0;
  // Past the last block of those that are being computed again; 0 the first time.
  size_t again_until = 0;
  // What the last block of the model gives in place of outputs (output_layer.h); null: outputs.
  std::shared_ptr<const OutputLoss> loss = nullptr;
};

// The blocks of a model in the wrappers that are inside of one. A copy keeps the wrappers, so it
// may be called in a backward pass; it does not keep the model.
class InnerBlocks {
 public:
  // Runs the blocks. A single one takes and gives what Block says; several take into() and
  // give out_of(), see Wiring; with a loss, the last one gives that. Throws Error(usage) for
  // other numbers of tensors.
  Tensors operator()(const BlockRun& run, Tensors inputs) const;

  const Model& model() const { return *model_; }

 private:
  friend class Model;

  // The outermost first; null where there is none of a kind.
  using Wrappers = std::array<std::shared_ptr<BlockWrapper>, kWrapperKinds>;

  InnerBlocks(const Model& model, std::shared_ptr<const Wrappers> wrappers, size_t level)
      : model_(&model), wrappers_(std::move(wrappers)), level_(level) {}

  Tensors run_each(const BlockRun& run, Tensors&& inputs) const;
  Tensors run_one(const BlockRun& run, Tensors&& inputs) const;
  // Through the wrappers from `level` on.
  Tensors run_in_block(size_t level, const BlockRun& run, Tensors&& inputs) const;

  const Model* model_;
  std::shared_ptr<const Wrappers> wrappers_;
  size_t level_;  // of the outermost wrapper that is inside
};

class BlockWrapper {
 public:
  virtual ~BlockWrapper() = default;
  // Always the same.
  virtual WrapperKind kind() const = 0;
  // Called in place of `next(run, inputs)`, to which it passes on these blocks: wrappers of kinds
  // gather and tensor run one block at a time, the others all blocks of a pass, in one call to
  // `next` or one for each block. On the thread of the forward pass, or, where blocks are computed
  // again, of the backward pass. What it throws ends the pass.
  virtual Tensors run(const BlockRun& run, Tensors inputs, const InnerBlocks& next) = 0;
};

// Keeps a wrapper around the blocks of a model while it lives. Graphs of passes from before its end
// still call the wrapper where their backward passes compute blocks again.
class WrapperGuard {
 public:
  WrapperGuard() = default;
  // Not during a pass of the model, which must outlive the guard. Throws Error(usage) where the
  // model has a wrapper of that kind.
  WrapperGuard(Model& model, std::shared_ptr<BlockWrapper> wrapper);
  ~WrapperGuard() { reset(); }
  WrapperGuard(WrapperGuard&& other) noexcept
      : model_(std::exchange(other.model_, nullptr)), kind_(other.kind_) {}
  WrapperGuard& operator=(WrapperGuard&& other) noexcept;

  // Takes the wrapper away.
  void reset();

 private:
  Model* model_ = nullptr;
  WrapperKind kind_ = WrapperKind::offload;
};

}  // namespace troika::nn
