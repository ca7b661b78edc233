#include "troika/parallel/pipeline/split_batch.h"

#include <fmt/format.h>

#include "troika/base/error.h"
#include "troika/compat/torch.h"

namespace troika::parallel {

SplitBatch::SplitBatch(const at::Tensor& inputs, const at::Tensor& targets, int micro_batches,
                       Loss loss)
    : samples_(inputs.dim() > 0 ? inputs.size(0) : 0), loss_(std::move(loss)) {
  const auto rows = targets.dim() > 0 ? targets.size(0) : 0;
  if (rows != samples_ || samples_ < micro_batches) {
    throw Error("parallel", ErrorKind::usage,
                {.what = "a batch that cannot be split into a pipeline's micro-batches",
                 .got = fmt::format("{} inputs and {} targets", samples_, rows),
                 .expected = fmt::format("as many targets as inputs, and at least {}, the number "
                                         "of micro-batches",
                                         micro_batches)});
  }
  inputs_ = inputs.tensor_split(micro_batches);
  targets_ = targets.tensor_split(micro_batches);
}

nn::Tensors SplitBatch::inputs(int micro_batch) {
  return {inputs_.at(static_cast<size_t>(micro_batch))};
}

at::Tensor SplitBatch::loss(int micro_batch, nn::Tensors outputs) {
  return loss_(nn::only(std::move(outputs)), targets_.at(static_cast<size_t>(micro_batch)));
}

at::Tensor SplitBatch::root(int micro_batch, const at::Tensor& loss) {
  return loss * weight(micro_batch);
}

double SplitBatch::weight(int micro_batch) const {
  const auto samples = inputs_.at(static_cast<size_t>(micro_batch)).size(0);
  return static_cast<double>(samples) / static_cast<double>(samples_);
}

}  // namespace troika::parallel
