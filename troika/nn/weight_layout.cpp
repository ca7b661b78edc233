#include "troika/nn/weight_layout.h"

#include <algorithm>
#include <utility>

#include "troika/base/clock.h"
#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/compat/torch.h"
#include "troika/nn/dense.h"
#include "troika/nn/take_turns.h"

namespace troika::nn {

namespace {

at::Tensor laid_out(const at::Tensor& weight, WeightLayout layout) {
  return layout == WeightLayout::in_out ? weight.contiguous() : weight.t().contiguous().t();
}

// Returns the seconds of a layer [in, out] for each layout.
std::vector<double> time_layer(int64_t rows, int64_t in, int64_t out,
                               const NumericPrecision& precision,
                               const std::vector<WeightLayout>& layouts, double seconds) {
  // Small values, so that no sum overflows in bfloat16.
  const auto some = [&](at::IntArrayRef sizes, at::ScalarType type) {
    return at::full(sizes, 1.0 / 64, type);
  };
  const auto input = some({rows, in}, precision.parameters).requires_grad_();
  const auto bias = some({out}, precision.parameters).requires_grad_();
  const auto gradient = some({rows, out}, precision.compute);
  std::vector<at::Tensor> weights;
  for (const auto layout : layouts) {
    weights.push_back(laid_out(some({in, out}, precision.parameters), layout).requires_grad_());
  }
  return least_of(take_turns(layouts.size(), seconds, [&](size_t candidate) {
    for (const auto& tensor : {input, bias, weights[candidate]}) tensor.mutable_grad().reset();
    const Stopwatch one;
    const auto output = [&] {
      const Autocast autocast(precision, at::kCPU);
      return dense(input, weights[candidate], bias);
    }();
    output.backward(gradient);
    return one.seconds();
  }));
}

}  // namespace

const std::vector<std::string>& weight_layout_names() {
  static const std::vector<std::string> names{"auto", "in_out", "out_in"};
  return names;
}

const std::string& weight_layout_name(WeightLayout layout) {
  return weight_layout_names().at(layout == WeightLayout::in_out ? 1 : 2);
}

WeightLayout parse_weight_layout(const std::string& name) {
  if (name == "auto" || name == "in_out") return WeightLayout::in_out;
  if (name == "out_in") return WeightLayout::out_in;
  throw Error("nn", ErrorKind::usage,
              {.what = "unknown layout of weights",
               .got = name,
               .hint = "did you mean " + nearest(name, weight_layout_names()) + "?"});
}

void lay_out_weights(torch::nn::Module& module, WeightLayout layout) {
  const at::NoGradGuard no_grad;
  module.apply([&](torch::nn::Module& below) {
    auto* const layer = dynamic_cast<Conv1D*>(&below);
    if (!layer) return;
    const auto& weight = layer->weight();
    const auto again = laid_out(weight.detach(), layout);
    if (again.strides() != weight.strides()) weight.set_data(again);
  });
}

std::vector<double> time_weight_layouts(int64_t rows, int64_t width,
                                        const NumericPrecision& precision,
                                        const std::vector<WeightLayout>& layouts) {
  constexpr double kSecondsOfALayer = 0.12;
  const at::AutoGradMode with_gradients(true);
  std::vector<double> sums(layouts.size());
  for (const auto& [in, out] :
       {std::pair{width, 3 * width}, {width, width}, {width, 4 * width}, {4 * width, width}}) {
    const auto seconds = time_layer(rows, in, out, precision, layouts, kSecondsOfALayer);
    std::ranges::transform(sums, seconds, sums.begin(), std::plus());
  }
  return sums;
}

}  // namespace troika::nn
