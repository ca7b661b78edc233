#include "troika/nn/timed_pass.h"

#include "troika/base/clock.h"
#include "troika/compat/torch.h"
#include "troika/nn/memory_format.h"
#include "troika/nn/output_layer.h"

namespace troika::nn {

namespace {

Tensors inputs_of(const ModelOptions& options, int64_t batch, const NumericPrecision& precision) {
  Tensors inputs = example_inputs(options, batch);
  for (auto& input : inputs) {
    if (input.is_floating_point()) input = input.to(precision.parameters);
  }
  return inputs;
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
  Tensors inputs = inputs_;
  for (auto& input : inputs) {
    if (input.dim() == 4) input = input.contiguous(format);
  }
  const Stopwatch one;
  const auto output = [&] {
    const Autocast autocast(precision_, at::kCPU);
    if (!model_->has_output_layer()) return only(model_->forward(inputs));
    // Tokens, the last input, serve as classes.
    return only(model_->forward(inputs, std::make_shared<OutputLoss>(OutputLoss{inputs_.back()})));
  }();
  output.sum().backward();
  return one.seconds();
}

}  // namespace troika::nn
