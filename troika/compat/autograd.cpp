#include "troika/compat/autograd.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <string>

#include "troika/base/error.h"
#include "troika/compat/torch.h"

namespace troika::compat {

namespace {

using torch::autograd::variable_list;

class Hook : public torch::autograd::FunctionPostHook {
 public:
  explicit Hook(std::function<void()> ready) : ready_(std::move(ready)) {}
  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    ready_();
    return outputs;
  }

 private:
  std::function<void()> ready_;
};

}  // namespace

struct GradientHook::Registration {
  // Keeps the accumulator alive; otherwise each graph would get a new one, without the hook.
  NodePointer accumulator;
  uintptr_t key;
};

GradientHook::GradientHook(const at::Tensor& parameter, std::function<void()> ready) {
  auto accumulator = torch::autograd::impl::grad_accumulator(parameter);
  const auto key = accumulator->add_post_hook(std::make_unique<Hook>(std::move(ready)));
  registration_ = std::make_unique<Registration>(Registration{std::move(accumulator), key});
}

GradientHook::~GradientHook() {
  registration_->accumulator->del_post_hook(registration_->key);
}

void set_history(at::Tensor& output, const NodePointer& node) {
  if (at::isFloatingType(output.scalar_type())) {
    torch::autograd::set_history(output, node);
  } else {
    node->add_input_metadata(torch::autograd::Node::undefined_input());
  }
}

void refuse_create_graph(const char* what) {
  if (!at::GradMode::is_enabled()) return;
  throw Error("compat", ErrorKind::usage,
              {.what = std::string(what) + " may be differentiated once",
               .got = "a backward pass with create_graph",
               .expected = "one without",
               .hint = "make the model of LibTorch's operators for gradients of gradients"});
}

}  // namespace troika::compat
