#include <fmt/format.h>

#include <array>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/nn/layers.h"
#include "troika/nn/linear.h"
#include "troika/nn/models.h"

namespace troika::nn {

namespace {

struct Shape {
  std::array<int64_t, 4> blocks;  // in layer1 .. layer4
  bool bottleneck;
};

Shape shape_of(int64_t depth) {
  switch (depth) {
    case 18:
      return {{2, 2, 2, 2}, false};
    case 34:
      return {{3, 4, 6, 3}, false};
    case 50:
      return {{3, 4, 6, 3}, true};
    case 101:
      return {{3, 4, 23, 3}, true};
  }
  TROIKA_CHECK(false, fmt::format("there is no ResNet-{}", depth));
}

// A residual block: convolutions with batch norms, and a projection if the shape changes.
class ResidualBlock : public torch::nn::Module {
 public:
  // Two 3x3 convolutions, or 1x1, 3x3 and 1x1 with `width` channels in the middle.
  ResidualBlock(int64_t in, int64_t width, int64_t stride, bool bottleneck) {
    const int64_t out = bottleneck ? 4 * width : width;
    if (bottleneck) {
      add(conv(in, width, 1));
      add(conv(width, width, 3, stride));
      add(conv(width, out, 1));
    } else {
      add(conv(in, width, 3, stride));
      add(conv(width, out, 3));
    }
    if (stride != 1 || in != out) {
      downsample_ = register_module(
          "downsample", torch::nn::Sequential(conv(in, out, 1, stride), BatchNorm(out)));
    }
  }

  at::Tensor forward(const at::Tensor& input) {
    at::Tensor inner = input;
    for (size_t i = 0; i + 1 < convs_.size(); ++i) {
      inner = conv_norm_relu(*convs_[i], *norms_[i], inner);
    }
    inner = norms_.back()->forward(convs_.back()->forward(inner));
    const at::Tensor shortcut = downsample_.is_empty() ? input : downsample_->forward(input);
    return inner.add_(shortcut).relu_();
  }

 private:
  void add(Conv2d conv) {
    const size_t number = convs_.size() + 1;
    const int64_t channels = conv->options.out_channels();
    convs_.push_back(register_module(fmt::format("conv{}", number), std::move(conv)));
    norms_.push_back(register_module(fmt::format("bn{}", number), BatchNorm(channels)));
  }

  std::vector<Conv2d> convs_;
  std::vector<BatchNorm> norms_;
  torch::nn::Sequential downsample_ = nullptr;
};

void add_stem(Model& model, const ModelOptions& options, Stem stem) {
  const bool imagenet = stem == Stem::imagenet;
  auto conv1 = model.place(
      "conv1", imagenet ? conv(options.in_channels, 64, 7, 2) : conv(options.in_channels, 64, 3));
  auto bn1 = model.place("bn1", BatchNorm(64));
  model.add_block({"stem", {"conv1", "bn1"}, {}, [=](const at::Tensor& input) {
                     check_images(input, options);
                     const at::Tensor features = conv_norm_relu(*conv1, *bn1, input);
                     return imagenet ? at::max_pool2d(features, 3, 2, 1) : features;
                   }});
}

}  // namespace

std::shared_ptr<Model> make_resnet(const ModelOptions& options, int64_t depth, Stem stem) {
  refuse_dropout(options);
  const Shape shape = shape_of(depth);
  auto model = std::make_shared<Model>();
  add_stem(*model, options, stem);

  int64_t in = 64;
  for (size_t layer = 0; layer < shape.blocks.size(); ++layer) {
    const int64_t width = 64 << layer;
    for (int64_t i = 0; i < shape.blocks[layer]; ++i) {
      const int64_t stride = layer > 0 && i == 0 ? 2 : 1;
      model->add_block(fmt::format("layer{}.{}", layer + 1, i),
                       std::make_shared<ResidualBlock>(in, width, stride, shape.bottleneck));
      in = shape.bottleneck ? 4 * width : width;
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
