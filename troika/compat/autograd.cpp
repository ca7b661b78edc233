#include "troika/compat/autograd.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

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

GradientHook::GradientHook(const at::Tensor& parameter, std::function<void()> ready)
    : accumulator_(torch::autograd::impl::grad_accumulator(parameter)),
      key_(accumulator_->add_post_hook(std::make_unique<Hook>(std::move(ready)))) {}

GradientHook::~GradientHook() {
  accumulator_->del_post_hook(key_);
}

}  // namespace troika::compat
