#include <gmock/gmock.h>

#include <map>

#include "troika/compat/fake_tensors.h"
#include "troika/compat/torch.h"
#include "troika/nn/zoo.h"

namespace troika::nn {
namespace {

// docs/benchmarks.rst of torchgpipe: 362.2M, 2.21B, 4.99B, 7.80B and 15.82B.
TEST(Unet, CountsAsTorchgpipes) {
  const compat::FakeTensorGuard without_memory;
  for (const auto& [convolutions, width, parameters] :
       {std::tuple<int64_t, int64_t, int64_t>{6, 72, 362'157'516},
        {11, 128, 2'213'834'176},
        {24, 128, 4'993'859'008},
        {24, 160, 7'802'903'600},
        {48, 160, 15'822'206'000}}) {
    const auto model = make_model({.name = "unet",
                                   .num_classes = 1,
                                   .image_size = 192,
                                   .depth = 5,
                                   .convolutions = convolutions,
                                   .base_width = width});
    EXPECT_EQ(parameter_count(*model), parameters);
    EXPECT_EQ(model->blocks().size(), static_cast<size_t>(11 * convolutions + 1));
    model->verify();
  }
}

// The whole network as torch modules, level by level, with the weights of a model.
class Reference {
 public:
  Reference(const Model& model, const ModelOptions& options) : options_(options) {
    for (const auto& [name, tensor] : named_state(model)) {
      weights_[name] = tensor.detach().clone().requires_grad_();
    }
  }

  at::Tensor forward(at::Tensor x) {
    std::vector<at::Tensor> skips;
    for (int64_t level = 0; level < options_.depth; ++level) {
      skips.push_back(x = convolved("encoder." + std::to_string(level), x));
      x = torch::nn::MaxPool2d(2)(x);
    }
    x = convolved("bottleneck", x);
    for (int64_t level = options_.depth - 1; level >= 0; --level) {
      const at::Tensor& skip = skips[static_cast<size_t>(level)];
      torch::nn::Upsample up(torch::nn::UpsampleOptions()
                                 .scale_factor(std::vector<double>{2, 2})
                                 .mode(torch::kNearest));
      x = up(x);
      x = torch::nn::ConstantPad2d(torch::nn::ConstantPad2dOptions(
          {0, skip.size(3) - x.size(3), 0, skip.size(2) - x.size(2)}, 0))(x);
      x = convolved("decoder." + std::to_string(level), torch::cat({x, skip}, 1));
    }
    return torch::conv2d(x, weights_.at("head.weight")).permute({0, 2, 3, 1});
  }

  const at::Tensor& weight(const std::string& name) const { return weights_.at(name); }

 private:
  at::Tensor convolved(const std::string& path, at::Tensor x) {
    for (int64_t i = 0; i < options_.convolutions; ++i) {
      const auto& weight = weights_.at(path + "." + std::to_string(i) + ".conv.weight");
      x = torch::conv2d(x, weight, {}, 1, 1);
      x = torch::nn::InstanceNorm2d(torch::nn::InstanceNorm2dOptions(x.size(1)))(x);
      x = torch::nn::LeakyReLU(torch::nn::LeakyReLUOptions().negative_slope(0.01))(x);
    }
    return x;
  }

  const ModelOptions options_;
  std::map<std::string, at::Tensor> weights_;
};

TEST(Unet, EqualsTorchModules) {
  for (const int64_t convolutions : {1, 2, 3}) {
    torch::manual_seed(21);
    const ModelOptions options{.name = "unet",
                               .num_classes = 3,
                               .in_channels = 2,
                               .image_size = 19,
                               .depth = 3,
                               .convolutions = convolutions,
                               .base_width = 6};
    const auto model = make_model(options);
    model->to(torch::kFloat64);
    Reference reference(*model, options);
    // Numbers of rows and columns that pooling does not divide evenly, so that features are padded.
    const at::Tensor images = torch::randn({2, 2, 19, 22}, torch::kFloat64);
    const at::Tensor expected = reference.forward(images), found = model->forward(images);
    ASSERT_EQ(found.sizes(), (std::vector<int64_t>{2, 19, 22, 3}));
    EXPECT_TRUE(at::allclose(found, expected, 1e-10, 1e-10));
    const at::Tensor gradient = torch::randn(found.sizes(), torch::kFloat64);
    expected.backward(gradient);
    found.backward(gradient);
    for (const auto& [name, tensor] : named_state(*model)) {
      EXPECT_TRUE(at::allclose(tensor.grad(), reference.weight(name).grad(), 1e-10, 1e-10)) << name;
    }
  }
}

TEST(Unet, DropsWholeChannels) {
  torch::manual_seed(22);
  const auto model =
      make_model({.name = "unet", .dropout = 0.5, .image_size = 16, .depth = 1, .base_width = 64});
  torch::NoGradGuard no_grad;
  const at::Tensor features =
      model->blocks().front().forward(torch::randn({4, 3, 16, 16})).flatten(2);
  // The norm turns a dropped channel into zeros, and no other channel.
  const at::Tensor dropped = features.eq(0).all(2);
  EXPECT_TRUE(features.eq(0).any(2).eq(dropped).all().item<bool>());
  EXPECT_NEAR(dropped.to(torch::kFloat64).mean().item<double>(), 0.5, 0.15);
}

}  // namespace
}  // namespace troika::nn
