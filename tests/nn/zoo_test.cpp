#include "troika/nn/zoo.h"

#include <gmock/gmock.h>

#include <cmath>
#include <set>

#include "tests/support/errors.h"
#include "troika/compat/fake_tensors.h"
#include "troika/compat/torch.h"
#include "troika/nn/dropout.h"

namespace troika::nn {
namespace {

// Every model, small where options allow it: image models at the smallest image that leaves batch
// norms something to average over.
ModelOptions small(const std::string& name) {
  return {.name = name,
          .num_classes = 10,
          .image_size = name == "inception_v3" ? 96
                        : name == "alexnet"    ? 64
                                               : 32,
          .hidden_width = 16,
          .depth = 2,
          .base_width = 8,
          .feature_width = 5,
          .frames = 6,
          .vocab_size = 11,
          .context = 8,
          .layers = 2,
          .heads = 2,
          .width = 12};
}

// torchvision's model pages; He et al. 2015, table 6 (0.27, 0.46 and 0.85 million) and the layer
// sums behind it for the CIFAR ResNets.
TEST(Zoo, HasThePublishedParameterCounts) {
  struct Published {
    std::string name;
    int64_t classes;
    int64_t parameters;
  };
  const std::vector<Published> all = {
      {"resnet20", 10, 269'722},          {"resnet32", 10, 464'154},
      {"resnet56", 10, 853'018},          {"resnet18", 1000, 11'689'512},
      {"resnet34", 1000, 21'797'672},     {"resnet50", 1000, 25'557'032},
      {"resnet101", 1000, 44'549'160},    {"resnet18_cifar", 10, 11'173'962},
      {"vgg11", 1000, 132'863'336},       {"vgg11_bn", 1000, 132'868'840},
      {"vgg16", 1000, 138'357'544},       {"vgg16_bn", 1000, 138'365'992},
      {"inception_v3", 1000, 23'834'568}, {"alexnet", 1000, 61'100'840}};
  const compat::FakeTensorGuard without_memory;
  for (const auto& [name, classes, parameters] : all) {
    const auto model = make_model({.name = name, .num_classes = classes, .image_size = 224});
    EXPECT_EQ(parameter_count(*model), parameters) << name;
    model->verify();
  }
}

// The others differ from one of these in their sizes alone, which counts of parameters check; half
// a gigabyte of weights and as much of gradients is too much for every one.
std::vector<std::string> trainable() {
  std::vector<std::string> names;
  const std::set<std::string> big = {"vgg11_bn", "vgg16", "vgg16_bn", "resnet101",
                                     "resnet101_cifar"};
  for (const std::string& name : model_names()) {
    if (!big.contains(name) && model_family(name) == name) names.push_back(name);
  }
  return names;
}

void expect_composition(const std::string& name) {
  torch::manual_seed(5);
  const ModelOptions options = small(name);
  const auto model = make_model(options);
  model->verify();
  model->eval();
  torch::NoGradGuard no_grad;
  const Tensors inputs = example_inputs(options, 2);
  const size_t all = model->blocks().size();
  Flow flow(model->wiring(), 0, all, inputs);
  for (size_t i = 0; i < all; ++i) {
    const Block& block = model->blocks()[i];
    const Tensors taken = flow.take(i, i + 1);
    Tensors before;
    for (const auto& tensor : taken) before.push_back(tensor.clone());
    flow.give(i, i + 1, block.forward(taken));
    for (size_t k = 0; k < taken.size(); ++k) {
      EXPECT_TRUE(torch::equal(taken[k], before[k])) << block.name << " wrote to its input";
    }
  }
  const at::Tensor output = only(flow.outputs());
  EXPECT_TRUE(torch::equal(only(model->forward(inputs)), output));
  std::vector<int64_t> logits{2, 10};
  const auto kind = sample_kind(name);
  if (kind == SampleKind::masks) logits = {2, 32, 32, 10};
  if (kind == SampleKind::text || kind == SampleKind::videos) logits = {2, 8, 11};
  EXPECT_EQ(output.sizes(), logits);
}

void expect_gradients(const std::string& name) {
  torch::manual_seed(6);
  const ModelOptions options = small(name);
  const auto model = make_model(options);
  const at::Tensor logits = only(model->forward(example_inputs(options, 2)));
  at::log_softmax(logits, -1).select(-1, 0).mean().neg().backward();
  for (const state::Entry& entry : named_parameters(*model)) {
    ASSERT_TRUE(entry.second.grad().defined()) << entry.first;
    EXPECT_TRUE(entry.second.grad().isfinite().all().item<bool>()) << entry.first;
    EXPECT_TRUE(entry.second.grad().ne(0).any().item<bool>()) << entry.first;
  }
}

TEST(Zoo, ModelsAreTheCompositionOfTheirBlocks) {
  for (const std::string& name : trainable()) {
    SCOPED_TRACE(name);
    expect_composition(name);
  }
}

TEST(Zoo, ModelsGiveEveryParameterAGradient) {
  for (const std::string& name : trainable()) {
    SCOPED_TRACE(name);
    expect_gradients(name);
  }
}

TEST(MakeModel, IsDeterministicUnderASeed) {
  for (const std::string name :
       {"mlp", "resnet20", "resnet18_cifar", "vgg11_bn_cifar", "unet", "gpt", "s2vt"}) {
    const auto weights = [&](uint64_t seed) {
      torch::manual_seed(seed);
      std::vector<at::Tensor> flat;
      for (const state::Entry& entry : named_state(*make_model(small(name)))) {
        flat.push_back(entry.second.detach().flatten().to(torch::kFloat64));
      }
      return at::cat(flat);
    };
    const at::Tensor first = weights(7);
    EXPECT_TRUE(torch::equal(first, weights(7))) << name;
    EXPECT_FALSE(torch::equal(first, weights(8))) << name;
  }
}

// The sizes between stages say where a model halves its image.
TEST(Shapes, StagesHalveTheImageWhereTheyShould) {
  const auto sizes = [](const std::string& name, int64_t image, const std::string& block) {
    const ModelOptions options = {.name = name, .image_size = image};
    const auto model = make_model(options);
    torch::NoGradGuard no_grad;
    at::Tensor x = example_input(options, 1);
    for (const Block& part : model->blocks()) {
      x = part.forward(x);
      if (part.name == block) break;
    }
    return x.sizes().vec();
  };
  using Sizes = std::vector<int64_t>;
  EXPECT_EQ(sizes("resnet18", 64, "stem"), (Sizes{1, 64, 16, 16}));
  EXPECT_EQ(sizes("resnet18", 64, "layer4.1"), (Sizes{1, 512, 2, 2}));
  EXPECT_EQ(sizes("resnet18_cifar", 32, "stem"), (Sizes{1, 64, 32, 32}));
  EXPECT_EQ(sizes("resnet50_cifar", 32, "layer4.2"), (Sizes{1, 2048, 4, 4}));
  EXPECT_EQ(sizes("resnet20", 32, "layer3.2"), (Sizes{1, 64, 8, 8}));
  EXPECT_EQ(sizes("vgg16_cifar", 32, "features.28"), (Sizes{1, 512, 1, 1}));
  EXPECT_EQ(sizes("inception_v3", 299, "Conv2d_4a_3x3"), (Sizes{1, 192, 35, 35}));
  EXPECT_EQ(sizes("inception_v3", 299, "Mixed_5d"), (Sizes{1, 288, 35, 35}));
  EXPECT_EQ(sizes("inception_v3", 299, "Mixed_6e"), (Sizes{1, 768, 17, 17}));
  EXPECT_EQ(sizes("inception_v3", 299, "Mixed_7c"), (Sizes{1, 2048, 8, 8}));
}

// With its convolutions at zero a residual block is ReLU of its shortcut.
TEST(CifarResnet, ShortcutTakesEverySecondPixelAndPadsChannels) {
  const auto model = make_model({.name = "resnet20"});
  torch::NoGradGuard no_grad;
  for (const auto& [name, tensor] : named_parameters(*model)) tensor.zero_();
  const Block& block = model->blocks()[4];
  ASSERT_EQ(block.name, "layer2.0");
  const at::Tensor input = torch::rand({2, 16, 6, 6});
  const at::Tensor output = block.forward(input);
  ASSERT_EQ(output.sizes(), (std::vector<int64_t>{2, 32, 3, 3}));
  EXPECT_TRUE(output.slice(1, 0, 8).eq(0).all().item<bool>());
  EXPECT_TRUE(output.slice(1, 24, 32).eq(0).all().item<bool>());
  for (int64_t row = 0; row < 3; ++row) {
    for (int64_t column = 0; column < 3; ++column) {
      EXPECT_TRUE(torch::equal(output.slice(1, 8, 24).select(3, column).select(2, row),
                               input.select(3, 2 * column).select(2, 2 * row)));
    }
  }
}

TEST(Initialisation, ConvolutionsFanOut) {
  torch::manual_seed(9);
  const auto parameters = make_model({.name = "resnet18"})->named_parameters();
  const at::Tensor weight = parameters["layer3.0.conv1.weight"];  // 256 filters of 128 x 3 x 3
  EXPECT_NEAR(weight.std().item<double>() / std::sqrt(2.0 / (256 * 9)), 1, 0.02);
  const auto inception = make_model({.name = "inception_v3", .image_size = 299});
  const at::Tensor mixed = inception->named_parameters()["Mixed_7b.branch3x3_1.conv.weight"];
  EXPECT_NEAR(mixed.std().item<double>(), 0.1, 0.002);
  const auto vgg = make_model({.name = "vgg11_cifar"})->named_parameters();
  EXPECT_NEAR(vgg["classifier.weight"].std().item<double>(), 0.01, 0.001);
  EXPECT_TRUE(vgg["features.0.bias"].eq(0).all().item<bool>());
}

TEST(Dropout, IsSwitchedOffByEvaluation) {
  for (const std::string name : {"mlp", "vgg11_cifar", "inception_v3", "alexnet", "unet", "s2vt"}) {
    ModelOptions options = small(name);
    options.dropout = 0.5;
    const auto model = make_model(options);
    // Without batch norms in training mode, dropout is what differs between two calls.
    model->eval();
    torch::NoGradGuard no_grad;
    const Tensors inputs = example_inputs(options, 2);
    const auto run = [&] { return only(model->forward(inputs)); };
    EXPECT_TRUE(torch::equal(run(), run())) << name;
    for (const auto& module : model->modules()) {
      // The dropout of unet is in the modules of its convolutions, which have no batch norms.
      if (module->as<Dropout>() || name == "unet") module->train();
    }
    EXPECT_FALSE(torch::equal(run(), run())) << name;
  }
}

TEST(MakeModel, RefusesAnUnknownNameWithTheNearest) {
  std::string known;
  for (const std::string& name : model_names()) known += (known.empty() ? "" : ", ") + name;
  EXPECT_ERROR(
      make_model({.name = "resnet19"}), ErrorKind::usage,
      "[nn] unknown model resnet19; expected one of " + known + " (did you mean resnet18?)");
  EXPECT_ERROR(example_input({.name = "gpd"}, 1), ErrorKind::usage,
               "[nn] unknown model gpd; expected one of " + known + " (did you mean gpt?)");
}

TEST(MakeModel, RefusesImpossibleOptions) {
  EXPECT_ERROR(make_model({.name = "resnet20", .num_classes = 0}), ErrorKind::usage,
               "[nn] num_classes of resnet20 is too small; got 0, expected at least 1");
  EXPECT_ERROR(make_model({.name = "resnet18", .in_channels = 0}), ErrorKind::usage,
               "[nn] in_channels of resnet18 is too small; got 0, expected at least 1");
  EXPECT_ERROR(make_model({.name = "mlp", .image_size = 0}), ErrorKind::usage,
               "[nn] image_size of mlp is too small; got 0, expected at least 1");
  EXPECT_ERROR(make_model({.name = "mlp", .hidden_layers = -1}), ErrorKind::usage,
               "[nn] hidden_layers of mlp is too small; got -1, expected at least 0");
  EXPECT_ERROR(make_model({.name = "mlp", .hidden_width = 0}), ErrorKind::usage,
               "[nn] hidden_width of mlp is too small; got 0, expected at least 1");
  EXPECT_ERROR(make_model({.name = "vgg16_cifar", .image_size = 28}), ErrorKind::usage,
               "[nn] image_size of vgg16_cifar is too small; got 28, expected at least 32");
  EXPECT_ERROR(make_model({.name = "inception_v3", .image_size = 74}), ErrorKind::usage,
               "[nn] image_size of inception_v3 is too small; got 74, expected at least 75");
  EXPECT_ERROR(make_model({.name = "alexnet", .image_size = 62}), ErrorKind::usage,
               "[nn] image_size of alexnet is too small; got 62, expected at least 63");
  EXPECT_ERROR(make_model({.name = "unet", .image_size = 32, .depth = 5}), ErrorKind::usage,
               "[nn] unet halves its images too often; got depth 5 for image_size 32, expected at "
               "least 2 rows and columns in the bottleneck (an instance norm of one pixel is zero; "
               "set model.depth)");
  EXPECT_ERROR(make_model({.name = "s2vt", .lstm_layers = 0}), ErrorKind::usage,
               "[nn] lstm_layers of s2vt is too small; got 0, expected at least 1");
  EXPECT_ERROR(make_model({.name = "resnet20", .dropout = 0.1}), ErrorKind::usage,
               "[nn] resnet20 has no dropout; got dropout 0.1, expected 0");
  EXPECT_ERROR(make_model({.name = "gpt", .dropout = 1.5}), ErrorKind::usage,
               "[nn] dropout of gpt is out of range; got 1.5, expected 0 <= dropout < 1");
}

TEST(MakeModel, ModelsRunAtTheSmallestImageTheyAccept) {
  torch::NoGradGuard no_grad;
  for (const auto& [name, size] : {std::pair<std::string, int64_t>{"inception_v3", 75},
                                   {"alexnet", 63},
                                   {"vgg11_cifar", 32},
                                   {"resnet18", 1},
                                   {"resnet20", 1}}) {
    const ModelOptions options = {.name = name, .image_size = size};
    const auto model = make_model(options);
    model->eval();
    EXPECT_EQ(model->forward(example_input(options, 1)).size(1), 10) << name;
  }
}

TEST(Forward, RefusesABatchOfAnotherShape) {
  for (const std::string name : {"resnet20", "resnet18_cifar", "vgg11_cifar", "unet"}) {
    EXPECT_ERROR(make_model({.name = name})->forward(torch::zeros({2, 1, 28, 28})),
                 ErrorKind::usage,
                 "[nn] " + name +
                     " cannot read this batch; got shape [2, 1, 28, 28], expected "
                     "[batch, 3, rows, columns]");
  }
  EXPECT_ERROR(make_model({.name = "mlp"})->forward(torch::zeros({2, 1, 28, 28})), ErrorKind::usage,
               "[nn] mlp cannot read this batch; got shape [2, 1, 28, 28], expected "
               "[batch, 3, 32, 32]");
}

TEST(Mlp, WithoutHiddenLayersIsLinear) {
  const ModelOptions options = {.name = "mlp", .image_size = 4, .hidden_layers = 0};
  const auto model = make_model(options);
  EXPECT_EQ(parameter_count(*model), 48 * 10 + 10);
  EXPECT_EQ(model->forward(example_input(options, 3)).sizes(), (std::vector<int64_t>{3, 10}));
}

}  // namespace
}  // namespace troika::nn
