#include "troika/train/memory/module_exchange.h"

#include <map>
#include <string>
#include <utility>

#include "troika/base/error.h"
#include "troika/compat/tensor_memory.h"
#include "troika/compat/torch.h"
#include "troika/nn/model.h"
#include "troika/nn/state.h"
#include "troika/parallel/block_parameters.h"
#include "troika/parallel/buckets.h"
#include "troika/parallel/replicas.h"
#include "troika/parallel/sharded.h"

namespace troika::train {

plan::ExchangeMemory exchange_of(const torch::nn::Module& module, plan::ExchangeShape shape,
                                 const std::vector<size_t>& order) {
  plan::ExchangedState state;
  std::map<std::string, size_t> indices;
  int64_t trained_bytes = 0;
  for (const auto& [name, tensor] : nn::trained_parameters(module)) {
    indices.emplace(name, state.trained.size());
    state.trained.push_back({.elements = tensor.numel(),
                             .element_bytes = static_cast<int64_t>(tensor.element_size()),
                             .kind = parallel::bucket_kind(tensor)});
    trained_bytes += static_cast<int64_t>(tensor.nbytes());
  }
  for (const auto& [name, tensor] : nn::named_state(module)) {
    state.other_bytes += static_cast<int64_t>(tensor.nbytes());
  }
  state.other_bytes -= trained_bytes;
  if (shape.stage == 3 && !shape.gathers_at_once) {
    const auto* model = dynamic_cast<const nn::Model*>(&module);
    TROIKA_CHECK(model, "ZeRO 3 shares out the parameters of blocks");
    std::map<std::string, size_t> buckets;
    for (const auto& names : parallel::buckets_of_blocks(*model)) {
      auto& members = state.of_blocks.emplace_back();
      for (const auto& name : names) {
        members.push_back(indices.at(name));
        buckets.emplace(name, state.of_blocks.size() - 1);
      }
    }
    state.needs = parallel::buckets_needed(*model, buckets);
  }
  shape.keep_elements = parallel::ShardedOptions().keep_elements;
  return {std::move(state), shape, order};
}

plan::ExchangeMemory::Start start_of(const plan::ExchangeMemory& exchange) {
  return exchange.start(parallel::kPackBytes);
}

plan::ExchangeMemory::Start start_without_values(const plan::ExchangeMemory& exchange,
                                                 double made) {
  return exchange.start_without_values(made, compat::kLeastWithoutMemory);
}

}  // namespace troika::train
