// The output layer of a model of many classes. Where the loss of the model is asked for it gives
// that in place of logits, which are then never there as a whole.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "troika/nn/block.h"

namespace troika::nn {

// A cross entropy that a model is asked for in place of its outputs.
struct OutputLoss {
  enum class Kind {
    mean,  // one element: the mean over the targets that count
    each,  // the loss of each target, and the class predicted for it; without gradients
  };

  at::Tensor targets;      // [...] of Long, a class number each
  int64_t ignored = -100;  // a target that does not count
  Kind kind = Kind::mean;

  // The names of the tensors that the model gives: "loss", and for Kind::each "predictions" as
  // well, both [targets.numel()].
  const std::vector<std::string>& gives() const;
};

// The cross entropy of logits [..., classes], computed in float32 at least, as half types have too
// few digits for sums of exponentials.
at::Tensor cross_entropy(const at::Tensor& logits, const OutputLoss& loss);

// What the last block of a model ends with, as an argument of its forward (block.h):
//
//   model->add_block({"head", {"norm", "head"}, {}, [=](const at::Tensor& x,
//                                                       const nn::OutputLayer& output) {
//     return output(norm->forward(x), head->weight);
//   }});
class OutputLayer {
 public:
  // Gives logits.
  OutputLayer() = default;
  // Gives the loss, unless it is null.
  explicit OutputLayer(std::shared_ptr<const OutputLoss> loss) : loss_(std::move(loss)) {}

  // logits = hidden weight^T, [..., classes] for a `hidden` of [..., width] and a `weight` of
  // [classes, width]. Or the tensors of OutputLoss::gives(): by linear_cross_entropy(), which needs
  // memory for a part of the logits alone, where that takes the type of `hidden`.
  Tensors operator()(const at::Tensor& hidden, const at::Tensor& weight) const;

 private:
  std::shared_ptr<const OutputLoss> loss_;
};

}  // namespace troika::nn
