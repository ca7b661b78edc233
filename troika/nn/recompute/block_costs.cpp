#include "troika/nn/recompute/block_costs.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "troika/base/clock.h"
#include "troika/compat/flop_counter.h"
#include "troika/compat/saved_tensors.h"
#include "troika/compat/torch.h"
#include "troika/nn/output_layer.h"
#include "troika/nn/recompute/surroundings.h"

namespace troika::nn {

namespace {

constexpr int kMeasurements = 3;
// About the FLOPs that a core computes while it moves one byte from or to memory.
constexpr double kFlopsPerByte = 10;

// Counts the bytes of distinct memory that is saved, without parameters and buffers.
class Counting : public compat::SavedTensorHooks {
 public:
  explicit Counting(std::set<const void*> known) : known_(std::move(known)) {}
  std::function<at::Tensor()> pack(const at::Tensor& tensor) override {
    count(tensor);
    return [tensor = tensor.detach()] { return tensor; };
  }
  void count(const at::Tensor& tensor) {
    if (known_.insert(tensor.storage().data()).second) {
      bytes_ += static_cast<int64_t>(tensor.storage().nbytes());
    }
  }
  int64_t bytes() const { return bytes_; }

 private:
  std::set<const void*> known_;
  int64_t bytes_ = 0;
};

// A counter that only grows, in seconds or FLOPs. A block's cost is the difference of its readings
// after and before the block.
using Meter = std::function<double()>;

// Returns the block's outputs and its cost. Gradients are computed for `sources`.
std::pair<Tensors, BlockCost> run(const Block& block, const OutputLayer& layer,
                                  const Tensors& inputs, const std::set<const void*>& state,
                                  const std::vector<at::Tensor>& sources, const Meter& spent) {
  auto known = state;
  for (const auto& input : inputs) known.insert(input.storage().data());
  Counting counting(known);
  BlockCost cost;
  const double before = spent();
  Tensors outputs;
  {
    const compat::SavedTensorGuard guard(counting);
    outputs = block.forward(inputs, layer);
  }
  cost.forward = spent() - before;
  Tensors roots, gradients;
  for (const auto& output : outputs) {
    counting.count(output);
    cost.output_bytes += static_cast<int64_t>(output.nbytes());
    if (!output.requires_grad()) continue;
    roots.push_back(output);
    gradients.push_back(at::ones_like(output));
  }
  cost.saved_bytes = std::max(counting.bytes(), cost.output_bytes);
  if (!roots.empty()) {
    const double before_backward = spent();
    torch::autograd::grad(roots, sources, gradients, /*retain_graph=*/false,
                          /*create_graph=*/false, /*allow_unused=*/true);
    cost.backward = spent() - before_backward;
  }
  for (auto& output : outputs) {
    output = output.detach().requires_grad_(at::isFloatingType(output.scalar_type()));
  }
  return {outputs, cost};
}

// Runs each block `measurements` times, after a warm-up run if that is more than one, and returns
// the minimum.
std::vector<BlockCost> costs_of_blocks(const Model& model, const Tensors& inputs,
                                       const std::shared_ptr<const OutputLoss>& loss,
                                       int measurements, const Meter& spent) {
  std::set<const void*> state;
  std::vector<at::Tensor> buffers, model_parameters;
  for (const auto& [name, tensor] : named_state(model)) {
    state.insert(tensor.storage().data());
    if (tensor.requires_grad()) model_parameters.push_back(tensor);
  }
  for (const auto& [name, tensor] : named_buffers(model)) buffers.push_back(tensor);
  std::vector<BlockCost> costs;
  Surroundings(inputs.front().device()).restored(buffers, [&] {
    Tensors detached;
    for (const auto& input : inputs) detached.push_back(input.detach());
    Flow flow(model.wiring(), 0, model.blocks().size(), std::move(detached));
    for (size_t i = 0; i < model.blocks().size(); ++i) {
      const auto& block = model.blocks()[i];
      const bool gives_loss = loss && i + 1 == model.blocks().size();
      const OutputLayer layer(gives_loss ? loss : nullptr);
      const Tensors taken = flow.take(i, i + 1);
      std::vector<at::Tensor> sources = model_parameters;
      std::ranges::copy_if(taken, std::back_inserter(sources), &at::Tensor::requires_grad);
      if (measurements > 1) run(block, layer, taken, state, sources, spent);
      auto [outputs, cost] = run(block, layer, taken, state, sources, spent);
      for (int again = 1; again < measurements; ++again) {
        const auto more = run(block, layer, taken, state, sources, spent).second;
        cost.forward = std::min(cost.forward, more.forward);
        cost.backward = std::min(cost.backward, more.backward);
      }
      costs.push_back(cost);
      const auto& gives = gives_loss ? loss->gives() : block.gives;
      require_outputs(block, gives, outputs);
      flow.give(i, i + 1, std::move(outputs));
    }
  });
  return costs;
}

}  // namespace

std::vector<BlockCost> measure_blocks(const Model& model, const Tensors& inputs,
                                      const std::shared_ptr<const OutputLoss>& loss) {
  const compat::FlopCounter::Pause pause;
  const Stopwatch watch;
  return costs_of_blocks(model, inputs, loss, kMeasurements, [&] { return watch.seconds(); });
}

std::vector<BlockCost> estimate_blocks(const Model& model, const Tensors& inputs,
                                       const std::shared_ptr<const OutputLoss>& loss) {
  const compat::FlopCounter counter;
  auto costs =
      costs_of_blocks(model, inputs, loss, 1, [&] { return static_cast<double>(counter.flops()); });
  for (auto& cost : costs) {
    const double moving = kFlopsPerByte * static_cast<double>(cost.saved_bytes);
    cost.forward += moving;
    cost.backward += moving;
  }
  return costs;
}

}  // namespace troika::nn
