#include "troika/nn/recompute/checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <optional>
#include <utility>

#include "troika/base/error.h"
#include "troika/compat/product_hook.h"
#include "troika/compat/saved_tensors.h"
#include "troika/compat/torch.h"
#include "troika/nn/recompute/surroundings.h"

namespace troika::nn {

namespace {

using Function = std::function<at::Tensor(const at::Tensor&)>;

// Ends a recomputation that has made all it is for.
struct Complete {};

std::string describe(const at::Tensor& tensor) {
  return fmt::format("{} [{}] on {}", c10::toString(tensor.scalar_type()),
                     fmt::join(tensor.sizes(), ", "), tensor.device().str());
}

// One call of a checkpointed function: what it takes to make again what it saved.
class Frame : public std::enable_shared_from_this<Frame> {
 public:
  Frame(Function function, const at::Tensor& input, CheckpointOptions options)
      : function_(std::move(function)),
        options_(std::move(options)),
        surroundings_(input.device()),
        input_(input) {}

  at::Tensor first_call(const at::Tensor& input) {
    Forgetting forgetting(*this);
    const compat::SavedTensorGuard guard(forgetting);
    Keeping keeping(*this);
    std::optional<compat::ProductGuard> products;
    if (options_.keep_products) products.emplace(keeping);
    return function_(input);
  }

 private:
  struct Product {
    at::Tensor tensor;
    int64_t version;  // before anything was done to it in place
  };

  // In the first call: tensors get numbers.
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

  // In a recomputation: tensors are kept under the same numbers.
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
      return {};  // no one goes back through this graph
    }

   private:
    Frame& frame_;
  };

  // In the first call.
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

  // In a recomputation, which makes the same calls in the same order.
  class Reusing : public compat::ProductHook {
   public:
    explicit Reusing(Frame& frame) : frame_(frame) {}
    at::Tensor call(const std::function<at::Tensor()>& work) override {
      const size_t number = next_++;
      if (number >= frame_.products_.size()) return work();
      const auto& [product, version] = frame_.products_[number];
      // Tensors that were overwritten are made again.
      return product._version() == version ? compat::alias(product) : work();
    }

   private:
    Frame& frame_;
    size_t next_ = 0;
  };

  // Made again if it was taken before: a graph may be gone through twice.
  at::Tensor take(size_t number) {
    if (number >= made_.size() || !made_[number].defined()) recompute();
    return std::exchange(made_[number], at::Tensor());
  }

  void recompute() {
    const at::Tensor input = input_.unpack();
    surroundings_.restored(options_.buffers, [&] {
      Recording recording(*this);
      const compat::SavedTensorGuard guard(recording);
      Reusing reusing(*this);
      std::optional<compat::ProductGuard> products;
      if (options_.keep_products) products.emplace(reusing);
      try {
        function_(input);
      } catch (const Complete&) {
        return;
      }
      if (made_.size() < saved_.size()) refuse(made_.size(), "nothing");
    });
  }

  [[noreturn]] void refuse(size_t number, const std::string& got) const {
    throw Error(
        "nn", ErrorKind::failure,
        {.what = fmt::format("{} did not do the same when recomputed: saved tensor {} of {}",
                             options_.name, number + 1, saved_.size()),
         .got = got,
         .expected = saved_[number],
         .hint = "a recomputed function must depend on nothing that changes"});
  }

  const Function function_;
  const CheckpointOptions options_;
  const Surroundings surroundings_;
  const compat::SavedTensor input_;
  std::vector<std::string> saved_;  // what the first call saved, in order
  std::vector<at::Tensor> made_;    // by the last recomputation; undefined once taken
  std::vector<Product> products_;   // of the first call, in order; none unless kept
};

struct ReentrantCall : torch::CustomClassHolder {
  ReentrantCall(Function f, CheckpointOptions o, at::Device device)
      : function(std::move(f)), options(std::move(o)), surroundings(device) {}
  const Function function;
  const CheckpointOptions options;
  const Surroundings surroundings;
};

struct Reentrant : torch::autograd::Function<Reentrant> {
  // `anchor` makes the output part of the graph even where the input is not.
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& /*anchor*/,
                            const c10::intrusive_ptr<ReentrantCall>& call) {
    context->save_for_backward({input});
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    return call->function(input);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables()[0];
    const auto capsule = context->saved_data["call"].toCapsule();
    const auto& call = static_cast<const ReentrantCall&>(*capsule);
    const auto input = saved.detach().requires_grad_(saved.requires_grad());
    at::Tensor output;
    call.surroundings.restored(call.options.buffers, [&] { output = call.function(input); });
    torch::autograd::backward({output}, {gradients[0]});
    return {input.grad(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor checkpoint(const Function& function, const at::Tensor& input,
                      const CheckpointOptions& options) {
  if (!at::GradMode::is_enabled()) return function(input);
  if (!compat::saved_tensor_hooks_work()) return checkpoint_reentrant(function, input, options);
  return std::make_shared<Frame>(function, input, options)->first_call(input);
}

at::Tensor checkpoint_reentrant(const Function& function, const at::Tensor& input,
                                const CheckpointOptions& options) {
  if (!at::GradMode::is_enabled()) return function(input);
  const auto anchor = at::empty({0}).requires_grad_();
  return Reentrant::apply(input, anchor,
                          c10::make_intrusive<ReentrantCall>(function, options, input.device()));
}

}  // namespace troika::nn
