// Names against torchvision's, and blocks against its formulas, which are written here again with
// plain operators.
#include <gmock/gmock.h>

#include <map>
#include <stdexcept>

#include "troika/compat/torch.h"
#include "troika/nn/zoo.h"

namespace troika::nn {
namespace {

std::vector<std::string> parameter_names(const Model& model) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : named_parameters(model)) names.push_back(name);
  return names;
}

// conv1 .. convN of a residual block with their norms, as torchvision lists them.
std::vector<std::string> resnet_names(std::vector<int> blocks, int convolutions, bool project1) {
  const auto add_norm = [](std::vector<std::string>& names, const std::string& norm) {
    names.insert(names.end(), {norm + ".weight", norm + ".bias"});
  };
  std::vector<std::string> names = {"conv1.weight"};
  add_norm(names, "bn1");
  for (size_t layer = 1; layer <= blocks.size(); ++layer) {
    for (int i = 0; i < blocks[layer - 1]; ++i) {
      const std::string block = "layer" + std::to_string(layer) + "." + std::to_string(i) + ".";
      for (int c = 1; c <= convolutions; ++c) {
        names.push_back(block + "conv" + std::to_string(c) + ".weight");
        add_norm(names, block + "bn" + std::to_string(c));
      }
      if (i == 0 && (layer > 1 || project1)) {
        names.push_back(block + "downsample.0.weight");
        add_norm(names, block + "downsample.1");
      }
    }
  }
  names.insert(names.end(), {"fc.weight", "fc.bias"});
  return names;
}

TEST(Names, Resnet18IsTorchvisions) {
  const auto names = parameter_names(*make_model({.name = "resnet18"}));
  EXPECT_EQ(names, resnet_names({2, 2, 2, 2}, 2, false));
  EXPECT_EQ(names.size(), 62);
}

TEST(Names, Resnet50IsTorchvisions) {
  const auto names = parameter_names(*make_model({.name = "resnet50"}));
  EXPECT_EQ(names, resnet_names({3, 4, 6, 3}, 3, true));
  EXPECT_EQ(names.size(), 161);
}

TEST(Names, ResnetsStateIsInTheOrderOfAStateDict) {
  const auto state = named_state(*make_model({.name = "resnet18"}));
  ASSERT_EQ(state.size(), 122);
  std::vector<std::string> first;
  for (size_t i = 0; i < 7; ++i) first.push_back(state[i].first);
  EXPECT_THAT(first, testing::ElementsAre("conv1.weight", "bn1.weight", "bn1.bias",
                                          "bn1.running_mean", "bn1.running_var",
                                          "bn1.num_batches_tracked", "layer1.0.conv1.weight"));
}

TEST(Names, Vgg11IsTorchvisions) {
  std::vector<std::string> expected;
  for (const int number : {0, 3, 6, 8, 11, 13, 16, 18}) {
    expected.push_back("features." + std::to_string(number) + ".weight");
    expected.push_back("features." + std::to_string(number) + ".bias");
  }
  for (const std::string number : {"0", "3", "6"}) {
    expected.push_back("classifier." + number + ".weight");
    expected.push_back("classifier." + number + ".bias");
  }
  EXPECT_EQ(parameter_names(*make_model({.name = "vgg11"})), expected);
}

TEST(Names, Vgg11WithNormsIsTorchvisions) {
  std::vector<std::string> expected;
  for (const int number : {0, 1, 4, 5, 8, 9, 11, 12, 15, 16, 18, 19, 22, 23, 25, 26}) {
    expected.push_back("features." + std::to_string(number) + ".weight");
    expected.push_back("features." + std::to_string(number) + ".bias");
  }
  expected.insert(expected.end(), {"classifier.weight", "classifier.bias"});
  EXPECT_EQ(parameter_names(*make_model({.name = "vgg11_bn_cifar"})), expected);
}

TEST(Names, AlexnetIsTorchvisions) {
  std::vector<std::string> expected;
  for (const std::string layer : {"features.0", "features.3", "features.6", "features.8",
                                  "features.10", "classifier.1", "classifier.4", "classifier.6"}) {
    expected.insert(expected.end(), {layer + ".weight", layer + ".bias"});
  }
  EXPECT_EQ(parameter_names(*make_model({.name = "alexnet", .image_size = 224})), expected);
}

TEST(Names, InceptionIsTorchvisions) {
  const auto model = make_model({.name = "inception_v3", .image_size = 299});
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const state::Entry& entry : named_state(*model)) {
    shapes[entry.first] = entry.second.sizes().vec();
  }
  // 94 convolutions with a norm each (6 tensors together) and the last layer.
  EXPECT_EQ(shapes.size(), 94 * 6 + 2);
  const std::map<std::string, std::vector<int64_t>> samples = {
      {"Conv2d_1a_3x3.conv.weight", {32, 3, 3, 3}},
      {"Conv2d_4a_3x3.bn.running_var", {192}},
      {"Mixed_5b.branch5x5_2.conv.weight", {64, 48, 5, 5}},
      {"Mixed_5b.branch_pool.conv.weight", {32, 192, 1, 1}},
      {"Mixed_5d.branch1x1.conv.weight", {64, 288, 1, 1}},
      {"Mixed_6a.branch3x3.conv.weight", {384, 288, 3, 3}},
      {"Mixed_6b.branch7x7dbl_4.conv.weight", {128, 128, 7, 1}},
      {"Mixed_6e.branch7x7_2.conv.weight", {192, 192, 1, 7}},
      {"Mixed_7a.branch7x7x3_4.bn.weight", {192}},
      {"Mixed_7c.branch3x3_2b.conv.weight", {384, 384, 3, 1}},
      {"Mixed_7c.branch3x3dbl_3a.conv.weight", {384, 384, 1, 3}},
      {"fc.weight", {10, 2048}}};
  for (const auto& [name, shape] : samples) EXPECT_EQ(shapes[name], shape) << name;
}

TEST(Names, CifarResnetHasThreeLayersOfBlocks) {
  const auto model = make_model({.name = "resnet20"});
  std::vector<std::string> names;
  for (const Block& block : model->blocks()) names.push_back(block.name);
  EXPECT_THAT(names, testing::ElementsAre("stem", "layer1.0", "layer1.1", "layer1.2", "layer2.0",
                                          "layer2.1", "layer2.2", "layer3.0", "layer3.1",
                                          "layer3.2", "head"));
}

// The tensors of a model by name, and torchvision's layers with these tensors, in evaluation mode.
class Weights {
 public:
  // Batch norms get statistics and factors with which a missing one changes the result.
  explicit Weights(Model& model) {
    model.eval();
    for (const state::Entry& entry : named_state(model)) {
      state_[entry.first] = entry.second.detach();
      const bool norm = entry.first.find("bn") != std::string::npos ||
                        !entry.second.requires_grad() ||
                        entry.first.find("downsample.1") != std::string::npos;
      if (norm && entry.second.is_floating_point()) entry.second.detach().uniform_(0.5, 1.5);
    }
  }

  at::Tensor operator()(const std::string& name) const { return state_.at(name); }
  at::Tensor conv(const std::string& name, const at::Tensor& x, int64_t stride, int64_t rows,
                  int64_t columns) const {
    return at::conv2d(x, state_.at(name + ".weight"), {}, stride, {rows, columns});
  }
  at::Tensor conv(const std::string& name, const at::Tensor& x, int64_t stride = 1) const {
    const int64_t pad = state_.at(name + ".weight").size(2) / 2;
    return conv(name, x, stride, pad, pad);
  }
  at::Tensor norm(const std::string& name, const at::Tensor& x, double epsilon = 1e-5) const {
    const auto channels = [&](const char* key) { return state_.at(name + key).view({-1, 1, 1}); };
    return (x - channels(".running_mean")) / (channels(".running_var") + epsilon).sqrt() *
               channels(".weight") +
           channels(".bias");
  }

 private:
  std::map<std::string, at::Tensor> state_;
};

const Block& block(const Model& model, const std::string& name) {
  for (const Block& block : model.blocks()) {
    if (block.name == name) return block;
  }
  throw std::out_of_range(name);
}

void expect_close(const at::Tensor& found, const at::Tensor& expected) {
  ASSERT_EQ(found.sizes(), expected.sizes());
  const double scale = expected.abs().max().item<double>();
  EXPECT_LE((found - expected).abs().max().item<double>(), 1e-4 * scale);
}

TEST(Formula, ResidualBlocks) {
  torch::NoGradGuard no_grad;
  const auto basic = make_model({.name = "resnet18"});
  const Weights w(*basic);
  at::Tensor x = torch::rand({2, 64, 9, 9});
  at::Tensor y = w.norm("layer2.0.bn1", w.conv("layer2.0.conv1", x, 2)).relu();
  y = w.norm("layer2.0.bn2", w.conv("layer2.0.conv2", y));
  y = y + w.norm("layer2.0.downsample.1", w.conv("layer2.0.downsample.0", x, 2));
  expect_close(block(*basic, "layer2.0").forward(x), y.relu());

  // The second version of the bottleneck: the 3x3 convolution has the stride.
  const auto deep = make_model({.name = "resnet50"});
  const Weights v(*deep);
  x = torch::rand({2, 256, 9, 9});
  y = v.norm("layer2.0.bn1", v.conv("layer2.0.conv1", x)).relu();
  y = v.norm("layer2.0.bn2", v.conv("layer2.0.conv2", y, 2)).relu();
  y = v.norm("layer2.0.bn3", v.conv("layer2.0.conv3", y));
  y = y + v.norm("layer2.0.downsample.1", v.conv("layer2.0.downsample.0", x, 2));
  expect_close(block(*deep, "layer2.0").forward(x), y.relu());
}

TEST(Formula, VggIsASequenceOfLayers) {
  torch::NoGradGuard no_grad;
  const auto model = make_model({.name = "vgg11_bn_cifar"});
  const Weights w(*model);
  const at::Tensor images = torch::rand({2, 3, 32, 32});
  at::Tensor x = images;
  int number = 0;
  for (const std::string layer :
       {"C", "P", "C", "P", "C", "C", "P", "C", "C", "P", "C", "C", "P"}) {
    if (layer == "P") {
      x = at::max_pool2d(x, 2);
      number += 1;
    } else {
      const std::string conv = "features." + std::to_string(number);
      x = w.conv(conv, x) + w(conv + ".bias").view({-1, 1, 1});
      x = w.norm("features." + std::to_string(number + 1), x).relu();
      number += 3;
    }
  }
  x = at::linear(x.flatten(1), w("classifier.weight"), w("classifier.bias"));
  expect_close(model->forward(images), x);
}

// The layers of torchvision's Sequentials, as torch modules, on an image larger than the smallest
// one.
TEST(Formula, AlexnetIsASequenceOfLayers) {
  torch::manual_seed(4);
  torch::NoGradGuard no_grad;
  const auto model = make_model({.name = "alexnet", .image_size = 224});
  model->to(torch::kFloat64);
  const Weights w(*model);
  const auto conv = [&](const at::Tensor& x, const std::string& name, int64_t stride,
                        int64_t padding) {
    return at::conv2d(x, w(name + ".weight"), w(name + ".bias"), stride, padding);
  };
  const auto linear = [&](const at::Tensor& x, const std::string& name) {
    return at::linear(x, w(name + ".weight"), w(name + ".bias"));
  };
  torch::nn::ReLU relu;
  torch::nn::MaxPool2d pool(torch::nn::MaxPool2dOptions(3).stride(2));
  const at::Tensor images = torch::randn({2, 3, 131, 163}, torch::kFloat64);
  at::Tensor x = pool(relu(conv(images, "features.0", 4, 2)));
  x = pool(relu(conv(x, "features.3", 1, 2)));
  x = relu(conv(x, "features.6", 1, 1));
  x = relu(conv(x, "features.8", 1, 1));
  x = pool(relu(conv(x, "features.10", 1, 1)));
  x = torch::nn::AdaptiveAvgPool2d(torch::nn::AdaptiveAvgPool2dOptions({6, 6}))(x).flatten(1);
  x = relu(linear(x, "classifier.1"));
  x = linear(relu(linear(x, "classifier.4")), "classifier.6");
  EXPECT_TRUE(at::allclose(model->forward(images), x, 1e-10, 1e-10));
}

TEST(Formula, InceptionBranches) {
  torch::NoGradGuard no_grad;
  const auto model = make_model({.name = "inception_v3", .image_size = 299});
  const Weights w(*model);
  const at::Tensor x = torch::rand({2, 1280, 8, 8});
  const auto layer = [&](const std::string& name, const at::Tensor& in, int64_t rows = 0,
                         int64_t columns = 0) {
    const std::string path = "Mixed_7b." + name;
    return w.norm(path + ".bn", w.conv(path + ".conv", in, 1, rows, columns), 1e-3).relu();
  };
  const at::Tensor a = layer("branch3x3_1", x);
  const at::Tensor b = layer("branch3x3dbl_2", layer("branch3x3dbl_1", x), 1, 1);
  const at::Tensor expected =
      at::cat({layer("branch1x1", x), layer("branch3x3_2a", a, 0, 1),
               layer("branch3x3_2b", a, 1, 0), layer("branch3x3dbl_3a", b, 0, 1),
               layer("branch3x3dbl_3b", b, 1, 0), layer("branch_pool", at::avg_pool2d(x, 3, 1, 1))},
              1);
  expect_close(block(*model, "Mixed_7b").forward(x), expected);
}

}  // namespace
}  // namespace troika::nn
