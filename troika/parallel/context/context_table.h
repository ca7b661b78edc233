// The check that a model can be cut by tokens over a context axis.
#pragma once

#include "troika/layout/context_method.h"
#include "troika/nn/model.h"
#include "troika/parallel/tensor/split_table.h"

namespace troika::parallel {

// Returns the block of a model that embeds its tokens. Throws Error(usage) naming a block or module
// if the model cannot be cut by tokens: each module with parameters needs a rule in the table, and
// must compute each token alone; tokens are mixed by modules of kind nn::AttentionModule; one block
// embeds the model's only input, and the last one has an output layer. With method all_to_all, also
// throws the errors of require_divisible_heads() for the heads that the table names, of which each
// of `tensor_ranks` ranks has its share, and for sdpa if the model's options have dropout. With
// method ring, throws for an implementation of attention that is not automatic. Also throws for a
// torch::nn::Dropout, whose masks are not keyed. Does not communicate.
size_t require_context(const nn::Model& model, const SplitTable& table, int ranks,
                       layout::ContextMethod method, int tensor_ranks = 1);

}  // namespace troika::parallel
