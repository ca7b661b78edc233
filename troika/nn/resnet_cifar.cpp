#include <fmt/format.h>

#include "troika/compat/torch.h"
#include "troika/nn/layers.h"
#include "troika/nn/linear.h"
#include "troika/nn/models.h"

namespace troika::nn {

namespace {

// Two 3x3 convolutions around a shortcut without parameters (option A).
class PlainShortcutBlock : public torch::nn::Module {
 public:
  PlainShortcutBlock(int64_t in, int64_t out, int64_t stride)
      : conv1_(register_module("conv1", conv(in, out, 3, stride))),
        bn1_(register_module("bn1", BatchNorm(out))),
        conv2_(register_module("conv2", conv(out, out, 3))),
        bn2_(register_module("bn2", BatchNorm(out))),
        stride_(stride),
        new_channels_(out - in) {}

  at::Tensor forward(const at::Tensor& input) {
    const at::Tensor inner = conv_norm_relu(*conv1_, *bn1_, input);
    return bn2_->forward(conv2_->forward(inner)).add_(shortcut(input)).relu_();
  }

 private:
  at::Tensor shortcut(const at::Tensor& input) const {
    if (new_channels_ == 0) return input;
    const at::Tensor pixels = input.slice(2, 0, {}, stride_).slice(3, 0, {}, stride_);
    // Pads half of the zero channels on either side, as the published CIFAR weights expect.
    const int64_t before = new_channels_ / 2;
    return at::constant_pad_nd(pixels, {0, 0, 0, 0, before, new_channels_ - before});
  }

  Conv2d conv1_;
  BatchNorm bn1_;
  Conv2d conv2_;
  BatchNorm bn2_;
  int64_t stride_;
  int64_t new_channels_;
};

}  // namespace

std::shared_ptr<Model> make_resnet_cifar(const ModelOptions& options, int64_t depth) {
  refuse_dropout(options);
  auto model = std::make_shared<Model>();
  auto conv1 = model->place("conv1", conv(options.in_channels, 16, 3));
  auto bn1 = model->place("bn1", BatchNorm(16));
  model->add_block({"stem", {"conv1", "bn1"}, {}, [=](const at::Tensor& input) {
                      check_images(input, options);
                      return conv_norm_relu(*conv1, *bn1, input);
                    }});

  int64_t in = 16;
  for (int layer = 1; layer <= 3; ++layer) {
    const int64_t out = 16 << (layer - 1);
    for (int64_t i = 0; i < (depth - 2) / 6; ++i) {
      const int64_t stride = out == in ? 1 : 2;
      model->add_block(fmt::format("layer{}.{}", layer, i),
                       std::make_shared<PlainShortcutBlock>(in, out, stride));
      in = out;
    }
  }

  auto fc = model->place("fc", std::make_shared<Linear>(in, options.num_classes));
  model->add_block({"head", {"fc"}, {}, [=](const at::Tensor& input) {
                      return fc->forward(input.mean({2, 3}));
                    }});
  init_convolutions(*model);
  return model;
}

}  // namespace troika::nn
