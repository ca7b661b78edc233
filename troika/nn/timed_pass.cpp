#include "troika/nn/timed_pass.h"

#include "troika/base/clock.h"
#include "troika/compat/torch.h"
#include "troika/nn/memory_format.h"
#include "troika/nn/output_layer.h"

namespace troika::nn {

namespace {

at::Tensor inputs_of(const ModelOptions& options, int64_t batch,
                     const NumericPrecision& precision) {
  const auto inputs = example_input(options, batch);
  return inputs.is_floating_point() ? inputs.to(precision.parameters) : inputs;
}

}  // namespace

TimedPass::TimedPass(const ModelOptions& options, int64_t batch, const NumericPrecision& precision)
    : random_(at::detail::getDefaultCPUGenerator().get_state()),
      precision_(precision),
      model_(make_model(options)),
      inputs_(inputs_of(options, batch, precision)) {
  model_->to(precision.parameters);
}

TimedPass::~TimedPass() {
  auto generator = at::detail::getDefaultCPUGenerator();
  generator.set_state(random_);
}

double TimedPass::seconds(at::MemoryFormat format) {
  const at::AutoGradMode with_gradients(true);
  lay_out(*model_, format);
  model_->zero_grad(/*set_to_none=*/true);
  const auto inputs = inputs_.dim() == 4 ? inputs_.contiguous(format) : inputs_;
  const Stopwatch one;
  const auto output = [&] {
    const Autocast autocast(precision_, at::kCPU);
    if (!model_->has_output_layer()) return model_->forward(inputs);
    // Tokens serve as classes.
    return only(model_->forward({inputs}, std::make_shared<OutputLoss>(OutputLoss{inputs})));
  }();
  output.sum().backward();
  return one.seconds();
}

}  // namespace troika::nn
