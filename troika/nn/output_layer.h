// The output layer of a model with many classes. If a loss is requested, it computes the loss
// without ever storing all logits.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "troika/nn/block.h"
#include "troika/nn/loss_terms.h"

namespace troika::nn {

// A cross entropy that a model computes instead of its outputs.
struct OutputLoss {
  enum class Kind {
    mean,  // one element: the mean over the targets that are not ignored
    each,  // each target's loss and its predicted class; without gradients
  };

  at::Tensor targets;      // [...] of Long: class numbers
  int64_t ignored = -100;  // targets of this value are skipped
  Kind kind = Kind::mean;
  LossTerms terms = {};  // Kind::each is plain cross entropy always
  // The number by which Kind::mean divides the sum of losses; nothing: the number of targets that
  // are not ignored.
  std::optional<int64_t> divisor = {};

  // Returns the names of the model's outputs: "loss", and for Kind::each also "predictions", both
  // [targets.numel()].
  const std::vector<std::string>& gives() const;
};

// Returns the cross entropy of logits [..., classes], computed in at least float32, since half
// types have too few digits for sums of exponentials.
at::Tensor cross_entropy(const at::Tensor& logits, const OutputLoss& loss);

// Computes an output layer whose weight is cut by rows over several ranks, in place of
// OutputLayer's own computation.
class SplitOutput {
 public:
  virtual ~SplitOutput() = default;
  // Return what OutputLayer returns for the whole weight; `rows` are this rank's rows of it.
  virtual at::Tensor logits(const at::Tensor& hidden, const at::Tensor& rows) const = 0;
  virtual Tensors loss(const at::Tensor& hidden, const at::Tensor& rows,
                       const OutputLoss& loss) const = 0;
};

// The last step of a model's last block, passed to its forward as an argument (block.h):
//
//   model->add_block({"head", {"norm", "head"}, {}, [=](const at::Tensor& x,
//                                                       const nn::OutputLayer& output) {
//     return output(norm->forward(x), head->weight);
//   }});
class OutputLayer {
 public:
  // Returns logits.
  OutputLayer() = default;
  // Returns the loss, unless `loss` is null.
  explicit OutputLayer(std::shared_ptr<const OutputLoss> loss,
                       std::shared_ptr<const SplitOutput> split = nullptr)
      : loss_(std::move(loss)), split_(std::move(split)) {}

  // Returns logits = hidden weight^T, [..., classes], for a `hidden` of [..., width] and a `weight`
  // of [classes, width]. With a loss, returns the tensors of OutputLoss::gives(); if
  // linear_cross_entropy() supports the type of `hidden`, it is used and stores only a part of the
  // logits at a time.
  Tensors operator()(const at::Tensor& hidden, const at::Tensor& weight) const;

 private:
  std::shared_ptr<const OutputLoss> loss_;
  std::shared_ptr<const SplitOutput> split_;
};

}  // namespace troika::nn
