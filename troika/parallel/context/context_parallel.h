// Context parallelism: the ranks of an axis each compute a part of the tokens of every sample, and
// attention together.
//
//   auto model = nn::make_model(options);
//   parallel::ContextParallel context(*model, groups.along(layout::Axis::context),
//                                     parallel::split_table(options));
//   parallel::DataParallel replicas(*model, groups.replicas());
//   for (...) {
//     loss(model->forward(inputs)).backward();  // the same inputs on all ranks of the axis
//     replicas.finish_backward();
//     replicas.step(*optimizer);
//   }
#pragma once

#include <ATen/core/Tensor.h>

#include "troika/comm/group.h"
#include "troika/layout/context_method.h"
#include "troika/nn/block_wrapper.h"
#include "troika/nn/model.h"
#include "troika/parallel/tensor/split_table.h"

namespace troika::parallel {

struct ContextOptions {
  layout::ContextMethod method = layout::ContextMethod::ring;
  // Ranks that cut the layers, each of which has its share of the heads (TensorParallel).
  int tensor_ranks = 1;
};

// Throws Error(usage) if the number of tokens of these inputs, [samples, tokens], cannot be cut
// into two chunks for each of `ranks` ranks.
void require_divisible_context(const at::Tensor& inputs, int ranks);

// Keeps a language model cut by tokens over the ranks of a group during its lifetime. The model's
// code is not aware of it: wrappers of its blocks cut the tokens before the first block and join
// the outputs, or sum the losses, behind the last one; its attention modules get a function that
// communicates. Every rank has all parameters.
//
// All ranks of the group must make the same passes on the same samples. Outputs and losses are
// those of one process, on all ranks, up to the order of sums. Training with dropout needs an
// nn::KeyedDraws object on the thread, otherwise passes throw Error(usage); masks are then those of
// one process. A gradient is this rank's summand times the number of ranks, so its
// mean over the group, as DataParallel makes it, is the gradient of one process. Passes block until
// all ranks have called them, at most for the group's timeout.
class ContextParallel {
 public:
  // Throws the errors of require_context(). Does not communicate. The model must outlive this
  // object, and must not have a wrapper of kind context. Attention modules must have no other core.
  ContextParallel(nn::Model& model, const comm::Group& axis, const SplitTable& table,
                  const ContextOptions& options = {});
  ~ContextParallel();
  ContextParallel(const ContextParallel&) = delete;
  ContextParallel& operator=(const ContextParallel&) = delete;

 private:
  nn::Model& model_;
  nn::WrapperGuard wrapper_;
};

}  // namespace troika::parallel
