#include "troika/parallel/tensor/token_blocks.h"

#include <algorithm>

#include "troika/compat/torch.h"
#include "troika/nn/linear.h"

namespace troika::parallel {

std::optional<size_t> embedding_block(const nn::Model& model,
                                      const std::vector<RuledModule>& modules) {
  const auto embedding = std::ranges::find_if(modules, [](const RuledModule& of) {
    return of.rule.split == Split::vocabulary && dynamic_cast<nn::Embedding*>(of.module.get());
  });
  if (embedding == modules.end()) return std::nullopt;
  const auto& blocks = model.blocks();
  const auto found = std::ranges::find_if(
      blocks, [&](const nn::Block& block) { return nn::owns(block, embedding->name); });
  return static_cast<size_t>(found - blocks.begin());
}

}  // namespace troika::parallel
