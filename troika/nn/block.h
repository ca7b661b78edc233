// A block of a model: a function of named tensors, with the parameters it uses.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace troika::nn {

// Tensors in the order of the names that belong to them. All are defined.
using Tensors = std::vector<at::Tensor>;

class OutputLayer;

// Wraps a function that takes one tensor or Tensors, and returns one tensor or Tensors. The
// function of a model's last block may take an OutputLayer as well (output_layer.h).
class BlockFunction {
  template <typename F, typename Input>
  static constexpr bool kEndsWithLayer = std::invocable<F&, const Input&, const OutputLayer&>;
  template <typename F, typename Input>
  static constexpr bool kTakes = (std::invocable<F&, const Input&> ||
                                  kEndsWithLayer<F, Input>)&&!std::same_as<F, BlockFunction>;

 public:
  BlockFunction() = default;
  BlockFunction(std::nullptr_t) {}  // NOLINT: blocks are written as lists
  template <typename F>
  requires(kTakes<F, at::Tensor> || kTakes<F, Tensors>) BlockFunction(F function) {  // NOLINT
    if constexpr (requires { function == nullptr; }) {
      if (function == nullptr) return;
    }
    takes_output_layer_ = kEndsWithLayer<F, at::Tensor> || kEndsWithLayer<F, Tensors>;
    function_ = [function = std::move(function)](Tensors inputs, const OutputLayer& layer) mutable {
      if constexpr (kTakes<F, at::Tensor>) {
        auto outputs = call(function, inputs.front(), layer);
        return listed(std::move(outputs), std::move(inputs));
      } else {
        auto outputs = call(function, inputs, layer);
        return listed(std::move(outputs), std::move(inputs));
      }
    };
  }

  Tensors operator()(Tensors inputs, const OutputLayer& layer) const {
    return function_(std::move(inputs), layer);
  }
  // Calls the function with an output layer that returns logits.
  Tensors operator()(Tensors inputs) const;
  // For a function that takes one tensor and returns one.
  at::Tensor operator()(const at::Tensor& input) const { return (*this)(Tensors{input}).front(); }
  bool takes_output_layer() const { return takes_output_layer_; }
  explicit operator bool() const { return static_cast<bool>(function_); }

 private:
  // Reuses the list of inputs, which is no longer needed, for the output: most blocks have one
  // input and one output, and a new list would be an allocation.
  static Tensors listed(at::Tensor output, Tensors inputs) {
    inputs.clear();
    inputs.push_back(std::move(output));
    return inputs;
  }
  static Tensors listed(Tensors outputs, const Tensors&) { return outputs; }
  template <typename F, typename Input>
  static auto call(F& function, const Input& input, const OutputLayer& layer) {
    if constexpr (kEndsWithLayer<F, Input>) return function(input, layer);
    if constexpr (!kEndsWithLayer<F, Input>) return function(input);
  }

  std::function<Tensors(Tensors, const OutputLayer&)> function_;
  bool takes_output_layer_ = false;
};

// The name of the tensor between blocks that take and give one tensor.
inline constexpr const char* kPassing = "x";

struct Block {
  std::string name;  // "stem", "layer1.0", "head"; unique in its model
  // Sub-modules (with everything below them) or single parameters of the model, by full name.
  // Exactly one block owns each parameter and buffer of a model.
  std::vector<std::string> owns;
  // Parameters that this block uses but another block owns, such as the tied output matrix of a
  // language model. If the two blocks are on different pipeline stages, their gradients must be
  // summed.
  std::vector<std::string> borrows;
  // Runs in the calling thread. Must not write to its inputs. It may only modify its own buffers
  // and, with dropout, the random generator, so that calling it again recomputes it. Returns one
  // tensor per name in `gives`, in that order; shapes may differ from call to call.
  BlockFunction forward;
  // Names of the input tensors. A name means the latest tensor of that name given by an earlier
  // block, or else an input of the model.
  std::vector<std::string> takes = {kPassing};
  std::vector<std::string> gives = {kPassing};
};

// Whether `name` is that of `module` or of something below it.
bool is_within(std::string_view module, std::string_view name);
// Whether a block owns the module or tensor of this name.
bool owns(const Block& block, std::string_view name);

}  // namespace troika::nn
