#include <fmt/format.h>

#include <array>

#include "troika/compat/torch.h"
#include "troika/nn/dropout.h"
#include "troika/nn/layers.h"
#include "troika/nn/linear.h"
#include "troika/nn/models.h"

namespace troika::nn {

namespace {

// The last pooling needs 3 x 3 pixels.
constexpr int64_t kSmallestAlexnetImage = 63;
constexpr int64_t kAlexnetGrid = 6;  // rows and columns of the classifier's input
constexpr int64_t kClassifierWidth = 4096;

struct AlexnetConv {
  int64_t number;  // in torchvision's Sequential
  int64_t out;
  int64_t kernel;
  int64_t stride;
  int64_t padding;
  bool pool;  // followed by a 3x3 max-pool of stride 2
};

constexpr std::array kAlexnetConvolutions{
    AlexnetConv{0, 64, 11, 4, 2, true},  AlexnetConv{3, 192, 5, 1, 2, true},
    AlexnetConv{6, 384, 3, 1, 1, false}, AlexnetConv{8, 256, 3, 1, 1, false},
    AlexnetConv{10, 256, 3, 1, 1, true},
};

// Adds one block per convolution, with the following ReLU and pooling. Returns the channels.
int64_t add_alexnet_features(Model& model, const ModelOptions& options) {
  int64_t in = options.in_channels;
  for (const AlexnetConv& spec : kAlexnetConvolutions) {
    const std::string name = fmt::format("features.{}", spec.number);
    auto conv = model.place(name, Conv2d(torch::nn::Conv2dOptions(in, spec.out, spec.kernel)
                                             .stride(spec.stride)
                                             .padding(spec.padding)));
    model.add_block({name, {name}, {}, [=](const at::Tensor& input) {
                       if (spec.number == 0) check_images(input, options);
                       const at::Tensor features = conv->forward(input).relu_();
                       return spec.pool ? at::max_pool2d(features, 3, 2) : features;
                     }});
    in = spec.out;
  }
  return in;
}

// Adds one block per linear layer. Dropout comes before the first two, as in torchvision.
void add_alexnet_classifier(Model& model, const ModelOptions& options, int64_t channels) {
  for (const int64_t number : {1, 4}) {
    const std::string name = fmt::format("classifier.{}", number);
    const bool first = number == 1;
    auto dropout = model.place(fmt::format("classifier.{}", number - 1),
                               std::make_shared<Dropout>(options.dropout));
    auto linear = model.place(
        name,
        std::make_shared<Linear>(first ? channels * kAlexnetGrid * kAlexnetGrid : kClassifierWidth,
                                 kClassifierWidth));
    model.add_block(
        {name, {name}, {}, [=](const at::Tensor& input) {
           const at::Tensor features =
               first ? at::adaptive_avg_pool2d(input, {kAlexnetGrid, kAlexnetGrid}).flatten(1)
                     : input;
           return linear->forward(dropout->forward(features)).relu_();
         }});
  }
  model.add_block("classifier.6", std::make_shared<Linear>(kClassifierWidth, options.num_classes));
}

}  // namespace

std::shared_ptr<Model> make_alexnet(const ModelOptions& options) {
  require_at_least(options, "image_size", options.image_size, kSmallestAlexnetImage);
  auto model = std::make_shared<Model>();
  const int64_t channels = add_alexnet_features(*model, options);
  add_alexnet_classifier(*model, options, channels);
  return model;
}

}  // namespace troika::nn
