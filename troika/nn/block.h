// A block of a model: a function of named tensors, and what it computes with.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstddef>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace troika::nn {

// In the order of the names that belong to them. All are defined.
using Tensors = std::vector<at::Tensor>;

class OutputLayer;

// Made of a function of one tensor, or of several; it gives one, or several. That of a model's last
// block may take an OutputLayer as well (output_layer.h).
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
  // With an output layer that gives logits.
  Tensors operator()(Tensors inputs) const;
  // For a function of one tensor that gives one.
  at::Tensor operator()(const at::Tensor& input) const { return (*this)(Tensors{input}).front(); }
  bool takes_output_layer() const { return takes_output_layer_; }
  explicit operator bool() const { return static_cast<bool>(function_); }

 private:
  // The list of the inputs, which are no longer needed, serves for one output: most blocks have one
  // of each, and a list is memory.
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

// The name of what passes through blocks of one tensor.
inline constexpr const char* kPassing = "x";

struct Block {
  std::string name;  // "stem", "layer1.0", "head"; unique in its model
  // Sub-modules (with all below them) or single parameters of the model, by full name. Every
  // parameter and buffer of a model is owned by exactly one block.
  std::vector<std::string> owns;
  // Parameters this block computes with though another block owns them: the tied output matrix of a
  // language model. Where the two blocks are apart, their gradients must be added up.
  std::vector<std::string> borrows;
  // Runs in the thread that calls. It never writes to its inputs, and its only side effects are on
  // its own buffers and, under dropout, on the random generator: calling it again recomputes it.
  // Gives as many tensors as `gives` has names, in that order; shapes may differ from call to call.
  BlockFunction forward;
  // The tensors it is called with: what blocks before it give, the latest of a name, or inputs of
  // the model.
  std::vector<std::string> takes = {kPassing};
  std::vector<std::string> gives = {kPassing};
};

}  // namespace troika::nn
