// The memory of a module's parameters and of their exchange.
#pragma once

#include <cstddef>
#include <vector>

#include "troika/plan/memory/exchange_memory.h"

namespace torch::nn {
class Module;
}

namespace troika::train {

// Returns the memory of the module's state under the exchange. `order` lists the indices of
// nn::trained_parameters() in the order in which their gradients arrive. `shape` may leave out
// ShardedOptions::keep_elements. Stage 3 requires an nn::Model, or ExchangeShape::gathers_at_once.
plan::ExchangeMemory exchange_of(const torch::nn::Module& module, plan::ExchangeShape shape,
                                 const std::vector<size_t>& order);

// As plan::ExchangeMemory::start() and start_without_values() of a run.
plan::ExchangeMemory::Start start_of(const plan::ExchangeMemory& exchange);
plan::ExchangeMemory::Start start_without_values(const plan::ExchangeMemory& exchange, double made);

}  // namespace troika::train
