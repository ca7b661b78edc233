#include <fmt/format.h>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/nn/dropout.h"
#include "troika/nn/layers.h"
#include "troika/nn/linear.h"
#include "troika/nn/models.h"

namespace troika::nn {

std::shared_ptr<Model> make_mlp(const ModelOptions& options) {
  require_at_least(options, "hidden_layers", options.hidden_layers, 0);
  require_at_least(options, "hidden_width", options.hidden_width, 1);
  const int64_t pixels = options.in_channels * options.image_size * options.image_size;
  // A later pipeline stage may get rows of features that are already flat.
  const auto flatten = [pixels, options](const at::Tensor& input) {
    if (input.dim() >= 2 && input.numel() == input.size(0) * pixels) return input.flatten(1);
    throw Error("nn", ErrorKind::usage,
                {.what = "mlp cannot read this batch",
                 .got = fmt::format("shape [{}]", fmt::join(input.sizes(), ", ")),
                 .expected = fmt::format("[batch, {}, {}, {}]", options.in_channels,
                                         options.image_size, options.image_size)});
  };

  auto model = std::make_shared<Model>();
  int64_t width = pixels;
  for (int64_t i = 0; i < options.hidden_layers; ++i) {
    const std::string name = fmt::format("layers.{}", i);
    auto linear = model->place(name, std::make_shared<Linear>(width, options.hidden_width));
    auto dropout =
        model->place(fmt::format("dropout.{}", i), std::make_shared<Dropout>(options.dropout));
    model->add_block({name, {name}, {}, [=, first = i == 0](const at::Tensor& input) {
                        const at::Tensor features = first ? flatten(input) : input;
                        return dropout->forward(linear->forward(features).relu_());
                      }});
    width = options.hidden_width;
  }
  auto head = model->place("head", std::make_shared<Linear>(width, options.num_classes));
  const bool first = options.hidden_layers == 0;
  model->add_block({"head", {"head"}, {}, [=](const at::Tensor& input) {
                      return head->forward(first ? flatten(input) : input);
                    }});
  return model;
}

}  // namespace troika::nn
