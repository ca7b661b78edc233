#include "troika/nn/recompute/checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "troika/base/error.h"
#include "troika/compat/autograd.h"
#include "troika/compat/product_hook.h"
#include "troika/compat/saved_tensors.h"
#include "troika/compat/torch.h"
#include "troika/nn/recompute/surroundings.h"

namespace troika::nn {

namespace {

// Thrown to end a recomputation once all saved tensors are made.
struct Complete {};

std::string describe(const at::Tensor& tensor) {
  return fmt::format("{} [{}] on {}", c10::toString(tensor.scalar_type()),
                     fmt::join(tensor.sizes(), ", "), tensor.device().str());
}

// One call of a checkpointed function, with everything needed to recompute the tensors it saved.
class Frame : public std::enable_shared_from_this<Frame> {
 public:
  Frame(BlockFunction function, const Tensors& inputs, CheckpointOptions options)
      : function_(std::move(function)),
        options_(std::move(options)),
        surroundings_(inputs.front().device()) {
    for (const auto& input : inputs) inputs_.emplace_back(input);
  }

  Tensors first_call(const Tensors& inputs) {
    Forgetting forgetting(*this);
    const compat::SavedTensorGuard guard(forgetting);
    Keeping keeping(*this);
    std::optional<compat::ProductGuard> products;
    if (options_.keep_products) products.emplace(keeping);
    return function_(inputs);
  }

 private:
  struct Product {
    at::Tensor tensor;
    int64_t version;  // of `tensor` right after it was made
  };

  // Used in the first call: gives each saved tensor a number and drops it.
  class Forgetting : public compat::SavedTensorHooks {
   public:
    explicit Forgetting(Frame& frame) : frame_(frame) {}
    std::function<at::Tensor()> pack(const at::Tensor& tensor) override {
      frame_.saved_.push_back(describe(tensor));
      return [frame = frame_.shared_from_this(), number = frame_.saved_.size() - 1] {
        return frame->take(number);
      };
    }

   private:
    Frame& frame_;
  };

  // Used in a recomputation: keeps tensors under the same numbers.
  class Recording : public compat::SavedTensorHooks {
   public:
    explicit Recording(Frame& frame) : frame_(frame) { frame_.made_.clear(); }
    std::function<at::Tensor()> pack(const at::Tensor& tensor) override {
      const size_t number = frame_.made_.size();
      if (number == frame_.saved_.size()) return {};
      if (describe(tensor) != frame_.saved_[number]) {
        frame_.refuse(number, describe(tensor));
      }
      frame_.made_.push_back(tensor.detach());
      const bool complete = frame_.made_.size() == frame_.saved_.size();
      if (complete && compat::may_throw_at(tensor)) throw Complete();
      return {};  // this graph has no backward pass
    }

   private:
    Frame& frame_;
  };

  // Used in the first call: keeps results of products.
  class Keeping : public compat::ProductHook {
   public:
    explicit Keeping(Frame& frame) : frame_(frame) {}
    at::Tensor call(const std::function<at::Tensor()>& work) override {
      const auto product = work();
      frame_.products_.push_back({compat::alias(product), product._version()});
      return product;
    }

   private:
    Frame& frame_;
  };

  // Used in a recomputation, which makes the same calls in the same order.
  class Reusing : public compat::ProductHook {
   public:
    explicit Reusing(Frame& frame) : frame_(frame) {}
    at::Tensor call(const std::function<at::Tensor()>& work) override {
      const size_t number = next_++;
      if (number >= frame_.products_.size()) return work();
      const auto& [product, version] = frame_.products_[number];
      // Recomputes products that were overwritten in place.
      return product._version() == version ? compat::alias(product) : work();
    }

   private:
    Frame& frame_;
    size_t next_ = 0;
  };

  // Recomputes a tensor that was already taken: a graph may have two backward passes.
  at::Tensor take(size_t number) {
    if (number >= made_.size() || !made_[number].defined()) recompute();
    return std::exchange(made_[number], at::Tensor());
  }

  void recompute() {
    Tensors inputs;
    for (const auto& input : inputs_) inputs.push_back(input.unpack());
    surroundings_.restored(options_.buffers, [&] {
      Recording recording(*this);
      const compat::SavedTensorGuard guard(recording);
      Reusing reusing(*this);
      std::optional<compat::ProductGuard> products;
      if (options_.keep_products) products.emplace(reusing);
      try {
        function_(inputs);
      } catch (const Complete&) {
        return;
      }
      if (made_.size() < saved_.size()) refuse(made_.size(), "nothing");
    });
  }

  [[noreturn]] void refuse(size_t number, const std::string& got) const {
    throw Error(
        "nn", ErrorKind::failure,
        {.what = fmt::format("{} gave another result when it was recomputed: saved tensor {} of {}",
                             options_.name, number + 1, saved_.size()),
         .got = got,
         .expected = saved_[number],
         .hint = "a recomputed function must depend on nothing that changes"});
  }

  const BlockFunction function_;
  const CheckpointOptions options_;
  const Surroundings surroundings_;
  std::deque<compat::SavedTensor> inputs_;  // a deque, so that they do not move
  std::vector<std::string> saved_;          // what the first call saved, in order
  std::vector<at::Tensor> made_;            // by the last recomputation; undefined once taken
  std::vector<Product> products_;           // of the first call, in order; empty unless kept
};

// A graph node rather than a torch::autograd::Function, which cannot take a list of tensors.
class Reentrant : public torch::autograd::Node {
 public:
  Reentrant(BlockFunction function, const Tensors& inputs, CheckpointOptions options)
      : function_(std::move(function)),
        options_(std::move(options)),
        surroundings_(inputs.front().device()) {
    set_next_edges(torch::autograd::collect_next_edges(inputs));
    for (const auto& input : inputs) inputs_.emplace_back(input, /*is_output=*/false);
  }

  Tensors call(const Tensors& inputs) const {
    const at::NoGradGuard no_grad;
    return function_(inputs);
  }

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    Tensors inputs, outputs, roots, of_roots, result;
    for (auto& saved : inputs_) {
      const auto input = saved.unpack();
      inputs.push_back(input.detach().requires_grad_(input.requires_grad()));
    }
    surroundings_.restored(options_.buffers, [&] { outputs = function_(inputs); });
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].requires_grad() || !gradients[i].defined()) continue;
      roots.push_back(outputs[i]);
      of_roots.push_back(gradients[i]);
    }
    // A block of frozen parameters whose inputs need no gradients has no roots.
    if (!roots.empty()) torch::autograd::backward(roots, of_roots);
    for (const auto& input : inputs) result.push_back(input.grad());
    return result;
  }

 private:
  const BlockFunction function_;
  const CheckpointOptions options_;
  const Surroundings surroundings_;
  std::vector<torch::autograd::SavedVariable> inputs_;
};

}  // namespace

Tensors checkpoint(const BlockFunction& function, const Tensors& inputs,
                   const CheckpointOptions& options) {
  if (!at::GradMode::is_enabled()) return function(inputs);
  if (!compat::saved_tensor_hooks_work()) return checkpoint_reentrant(function, inputs, options);
  return std::make_shared<Frame>(function, inputs, options)->first_call(inputs);
}

at::Tensor checkpoint(const BlockFunction& function, const at::Tensor& input,
                      const CheckpointOptions& options) {
  return checkpoint(function, Tensors{input}, options).front();
}

Tensors checkpoint_reentrant(const BlockFunction& function, const Tensors& inputs,
                             const CheckpointOptions& options) {
  if (!at::GradMode::is_enabled()) return function(inputs);
  const auto node = compat::make_node<Reentrant>(function, inputs, options);
  Tensors outputs = static_cast<const Reentrant&>(*node).call(inputs);
  for (auto& output : outputs) {
    output = output.variable_data();
    compat::set_history(output, node);
  }
  return outputs;
}

}  // namespace troika::nn
