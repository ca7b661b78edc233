// Functions that run inside layers, set from outside: with them, several ranks compute a layer
// together (troika/parallel/tensor), or a layer gets an adapter (lora.h), and the model does not
// know it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

namespace troika::nn {

// A part of a tensor that is cut into `count` equal parts along `dim`: part `index`.
struct EqualPart {
  int64_t dim;
  int64_t index;
  int64_t count;
};

// The input of linear layers that is not kept for the backward pass, but made again there.
class RemadeInput {
 public:
  virtual ~RemadeInput() = default;
  // One more layer will take the input in each backward pass.
  virtual void add_user() = 0;
  // Starts to make it, unless that has begun. Does not block.
  virtual void start() = 0;
  // Blocks until it is made, and returns it. The last user's call drops it.
  virtual at::Tensor take() = 0;
};

// How a layer computes the gradients of its weight and bias: in a node of the graph with this
// sequence number.
struct LateWeights {
  uint64_t sequence_number = 0;
  std::shared_ptr<RemadeInput> input = nullptr;  // null: the layer keeps its input
};

// Base class of modules that run such functions. A module without functions does the same as if it
// were not hooked. The functions are called on the thread of the forward pass or, in a
// recomputation, of the backward pass. They must not be changed during a pass.
class Hooked {
 public:
  using Hook = std::function<at::Tensor(const at::Tensor&)>;

  // The module uses hook(input) in place of its input.
  void hook_input(Hook hook) { input_ = std::move(hook); }
  // A linear layer or convolution uses hook(product) in place of the product of its input and its
  // weight, before it adds its bias. Only these layers call it.
  void hook_product(Hook hook) { product_ = std::move(hook); }
  // A linear layer without a hook of its product computes the gradients of its weight and bias as
  // late as hook(input) says (nn::dense_with_late_weights()), if it says so. Only linear layers
  // call it.
  using WeightsHook = std::function<std::optional<LateWeights>(const at::Tensor& input)>;
  void hook_weights(WeightsHook hook) { weights_ = std::move(hook); }
  void unhook() {
    input_ = product_ = nullptr;
    weights_ = nullptr;
  }
  // A linear layer adds branch(input) to the product of its input and its weight: after the hook of
  // the input, and before that of the product. Null: as before; unhook() leaves it. Only linear
  // layers call it.
  void add_branch(Hook branch) { branch_ = std::move(branch); }

 protected:
  ~Hooked() = default;

  at::Tensor hooked_input(const at::Tensor& input) const { return input_ ? input_(input) : input; }
  bool hooks_product() const { return product_ != nullptr; }
  at::Tensor hooked_product(const at::Tensor& product) const { return product_(product); }
  std::optional<LateWeights> late_weights(const at::Tensor& input, const at::Tensor& weight,
                                          const at::Tensor& bias) const {
    const bool are_trained = weight.requires_grad() || (bias.defined() && bias.requires_grad());
    return weights_ && are_trained ? weights_(input) : std::nullopt;
  }
  at::Tensor with_branch(const at::Tensor& product, const at::Tensor& input) const {
    return branch_ ? product.add(branch_(input)) : product;
  }

 private:
  Hook input_;
  Hook product_;
  WeightsHook weights_;
  Hook branch_;
};

}  // namespace troika::nn
