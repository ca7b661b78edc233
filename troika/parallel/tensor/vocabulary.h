// Embedding and output layer of a language model whose vocabulary is cut by rows over a tensor axis
// (Shoeybi et al. 2019, arXiv 1909.08053, section 3).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "troika/comm/group.h"
#include "troika/layout/box.h"
#include "troika/nn/output_layer.h"

namespace troika {
class Trace;
}

namespace troika::parallel {

// The rows of a vocabulary that this rank holds.
struct VocabularyShard {
  comm::Group axis;
  int64_t words = 0;       // rows of the whole vocabulary
  layout::Range rows;      // of this rank: vocabulary_rows()
  Trace* trace = nullptr;  // of axis_functions.h

  // Throws Error(usage) unless `rows` is a matrix of this rank's rows.
  void verify(const at::Tensor& matrix) const;
};

// Returns the rows of the whole embedding at `indices`, Long [...], on all ranks. `matrix` has this
// rank's rows. Collective in the forward pass. Throws LibTorch's error for an index that is no
// word.
at::Tensor vocabulary_lookup(const at::Tensor& indices, const at::Tensor& matrix,
                             const VocabularyShard& shard);

// The output layer: logits = hidden matrix^T, cut by columns. Its cross entropy needs the logits'
// maximum, sums of exponentials and targets' logits from other ranks, two collectives of one to
// three numbers per row. So no rank has all logits, and, as in nn::linear_cross_entropy(), each
// rank has its own only for a part of the rows at a time.
class VocabularyOutput : public nn::SplitOutput {
 public:
  // `enter` is applied to `hidden`: it must return the same tensor on all ranks, and sum the ranks'
  // gradients of it.
  using Enter = std::function<at::Tensor(const at::Tensor&)>;
  VocabularyOutput(VocabularyShard shard, Enter enter);

  // Return the same on all ranks. Collective, in the backward pass too.
  at::Tensor logits(const at::Tensor& hidden, const at::Tensor& rows) const override;
  nn::Tensors loss(const at::Tensor& hidden, const at::Tensor& rows,
                   const nn::OutputLoss& loss) const override;

 private:
  VocabularyShard shard_;
  Enter enter_;
  std::vector<int64_t> widths_;  // rows of each rank
};

}  // namespace troika::parallel
