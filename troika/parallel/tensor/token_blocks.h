// The block of a model after which its activations have tokens.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "troika/nn/model.h"
#include "troika/parallel/tensor/parameter_cuts.h"

namespace troika::parallel {

// Returns the block that owns the first nn::Embedding with a rule of kind Split::vocabulary;
// nothing: the model embeds no tokens.
std::optional<size_t> embedding_block(const nn::Model& model,
                                      const std::vector<RuledModule>& modules);

}  // namespace troika::parallel
