#include "troika/nn/layers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "troika/base/error.h"
#include "troika/compat/torch.h"

namespace troika::nn {

Conv2d conv(int64_t in, int64_t out, int64_t kernel, int64_t stride) {
  return Conv2d(
      torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

at::Tensor conv_norm_relu(Conv2dImpl& conv, BatchNormImpl& norm, const at::Tensor& input) {
  return norm.forward_relu(conv.forward(input));
}

void init_convolutions(torch::nn::Module& module) {
  for (const auto& child : module.modules(/*include_self=*/false)) {
    if (auto* layer = child->as<torch::nn::Conv2d>()) {
      torch::nn::init::kaiming_normal_(layer->weight, 0.0, torch::kFanOut, torch::kReLU);
      if (layer->bias.defined()) torch::nn::init::zeros_(layer->bias);
    }
  }
}

void check_images(const at::Tensor& input, const ModelOptions& options) {
  if (input.dim() == 4 && input.size(1) == options.in_channels) return;
  throw Error("nn", ErrorKind::usage,
              {.what = fmt::format("{} cannot read this batch", options.name),
               .got = fmt::format("shape [{}]", fmt::join(input.sizes(), ", ")),
               .expected = fmt::format("[batch, {}, rows, columns]", options.in_channels)});
}

void require_at_least(const ModelOptions& options, const char* option, int64_t value,
                      int64_t least) {
  if (value >= least) return;
  throw Error("nn", ErrorKind::usage,
              {.what = fmt::format("{} of {} is too small", option, options.name),
               .got = std::to_string(value),
               .expected = fmt::format("at least {}", least)});
}

void refuse_dropout(const ModelOptions& options) {
  if (options.dropout == 0) return;
  throw Error("nn", ErrorKind::usage,
              {.what = fmt::format("{} has no dropout", options.name),
               .got = fmt::format("dropout {}", options.dropout),
               .expected = "0"});
}

}  // namespace troika::nn
