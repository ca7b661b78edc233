#include <fmt/format.h>

#include <vector>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/nn/dropout.h"
#include "troika/nn/layers.h"
#include "troika/nn/linear.h"
#include "troika/nn/models.h"

namespace troika::nn {

namespace {

constexpr int64_t kPool = 0;
// Five poolings halve the image to at least one pixel.
constexpr int64_t kSmallestVggImage = 32;

// Returns the channels of each convolution, and the positions of 2x2 max-pools (configurations A
// and D).
std::vector<int64_t> layout_of(int64_t depth) {
  switch (depth) {
    case 11:
      return {64, kPool, 128, kPool, 256, 256, kPool, 512, 512, kPool, 512, 512, kPool};
    case 16:
      return {64,    64,  kPool, 128, 128,   kPool, 256, 256, 256,
              kPool, 512, 512,   512, kPool, 512,   512, 512, kPool};
  }
  TROIKA_CHECK(false, fmt::format("there is no VGG-{}", depth));
}

// Adds one block per convolution, with the following norm, ReLU and pooling. Numbers count these
// layers too, as torchvision's Sequential does.
int64_t add_features(Model& model, const ModelOptions& options, int64_t depth, bool batch_norm) {
  const std::vector<int64_t> layout = layout_of(depth);
  int64_t in = options.in_channels;
  int64_t number = 0;
  for (size_t i = 0; i < layout.size(); ++i) {
    if (layout[i] == kPool) continue;
    const int64_t out = layout[i];
    const bool pool = layout[i + 1] == kPool;
    const std::string name = fmt::format("features.{}", number);
    std::vector<std::string> owns = {name};
    auto conv = model.place(name, Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1)));
    std::shared_ptr<BatchNormImpl> norm;
    if (batch_norm) {
      owns.push_back(fmt::format("features.{}", number + 1));
      norm = model.place(owns.back(), BatchNorm(out));
    }
    model.add_block({name, owns, {}, [=, first = i == 0](const at::Tensor& input) {
                       if (first) check_images(input, options);
                       at::Tensor features = conv->forward(input);
                       if (norm) features = norm->forward(features);
                       features.relu_();
                       return pool ? at::max_pool2d(features, 2) : features;
                     }});
    number += 2 + batch_norm + pool;
    in = out;
  }
  return in;
}

void init_linear(torch::nn::LinearImpl& linear) {
  torch::nn::init::normal_(linear.weight, 0.0, 0.01);
  torch::nn::init::zeros_(linear.bias);
}

void add_cifar_classifier(Model& model, const ModelOptions& options, int64_t channels) {
  auto dropout = model.place("dropout", std::make_shared<Dropout>(options.dropout));
  auto linear = model.place("classifier", std::make_shared<Linear>(channels, options.num_classes));
  init_linear(*linear);
  model.add_block({"classifier", {"classifier"}, {}, [=](const at::Tensor& input) {
                     return linear->forward(dropout->forward(input.mean({2, 3})));
                   }});
}

void add_imagenet_classifier(Model& model, const ModelOptions& options, int64_t channels) {
  constexpr int64_t kWidth = 4096;
  constexpr int64_t kGrid = 7;
  for (const int64_t number : {0, 3}) {
    const std::string name = fmt::format("classifier.{}", number);
    const int64_t in = number == 0 ? channels * kGrid * kGrid : kWidth;
    auto linear = model.place(name, std::make_shared<Linear>(in, kWidth));
    auto dropout = model.place(fmt::format("classifier.{}", number + 2),
                               std::make_shared<Dropout>(options.dropout));
    init_linear(*linear);
    model.add_block({name, {name}, {}, [=](const at::Tensor& input) {
                       const at::Tensor features =
                           number == 0 ? at::adaptive_avg_pool2d(input, {kGrid, kGrid}).flatten(1)
                                       : input;
                       return dropout->forward(linear->forward(features).relu_());
                     }});
  }
  auto last = std::make_shared<Linear>(kWidth, options.num_classes);
  init_linear(*last);
  model.add_block("classifier.6", last);
}

}  // namespace

std::shared_ptr<Model> make_vgg(const ModelOptions& options, int64_t depth, bool batch_norm,
                                Stem stem) {
  require_at_least(options, "image_size", options.image_size, kSmallestVggImage);
  auto model = std::make_shared<Model>();
  const int64_t channels = add_features(*model, options, depth, batch_norm);
  init_convolutions(*model);
  if (stem == Stem::imagenet) {
    add_imagenet_classifier(*model, options, channels);
  } else {
    add_cifar_classifier(*model, options, channels);
  }
  return model;
}

}  // namespace troika::nn
