#include <fmt/format.h>

#include <array>
#include <initializer_list>
#include <string>
#include <vector>

#include "troika/compat/torch.h"
#include "troika/nn/dropout.h"
#include "troika/nn/layers.h"
#include "troika/nn/linear.h"
#include "troika/nn/models.h"

namespace troika::nn {

namespace {

// A smaller image has no pixel left in the last modules.
constexpr int64_t kSmallestImage = 75;

using Extent = std::array<int64_t, 2>;  // rows, columns

// Convolution, batch norm and ReLU under torchvision's names.
class BasicConv : public torch::nn::Module {
 public:
  BasicConv(int64_t in, int64_t out, Extent kernel, int64_t stride, Extent padding)
      : conv_(
            register_module("conv", Conv2d(torch::nn::Conv2dOptions(in, out, {kernel[0], kernel[1]})
                                               .stride(stride)
                                               .padding({padding[0], padding[1]})
                                               .bias(false)))),
        bn_(register_module("bn", BatchNorm(torch::nn::BatchNormOptions(out).eps(1e-3)))) {}

  at::Tensor forward(const at::Tensor& input) { return conv_norm_relu(*conv_, *bn_, input); }

 private:
  Conv2d conv_;
  BatchNorm bn_;
};

// A convolution inside a mixed module has stride 1 and keeps the size, or has stride 2
// without padding.
struct ConvSpec {
  std::string name;
  int64_t out;
  Extent kernel;
  int64_t stride = 1;
};

enum class Pool { none, average, max };

// A pooling, a chain of convolutions, then optionally several convolutions side by side.
struct BranchSpec {
  Pool pool = Pool::none;
  std::vector<ConvSpec> chain;
  std::vector<ConvSpec> fork = {};
};

// Branches on the same input, concatenated by channel.
class Mixed : public torch::nn::Module {
 public:
  Mixed(int64_t in, const std::vector<BranchSpec>& specs) {
    for (const BranchSpec& spec : specs) {
      Branch& branch = branches_.emplace_back();
      branch.pool = spec.pool;
      int64_t channels = in;
      for (const ConvSpec& conv : spec.chain) {
        branch.chain.push_back(add(channels, conv));
        channels = conv.out;
      }
      for (const ConvSpec& conv : spec.fork) {
        branch.fork.push_back(add(channels, conv));
        out_channels_ += conv.out;
      }
      if (spec.fork.empty()) out_channels_ += channels;
    }
  }

  int64_t out_channels() const { return out_channels_; }

  at::Tensor forward(const at::Tensor& input) {
    std::vector<at::Tensor> outputs;
    for (const Branch& branch : branches_) {
      at::Tensor features = input;
      if (branch.pool == Pool::average) features = at::avg_pool2d(input, 3, 1, 1);
      if (branch.pool == Pool::max) features = at::max_pool2d(input, 3, 2);
      for (const auto& conv : branch.chain) features = conv->forward(features);
      for (const auto& conv : branch.fork) outputs.push_back(conv->forward(features));
      if (branch.fork.empty()) outputs.push_back(features);
    }
    return at::cat(outputs, 1);
  }

 private:
  struct Branch {
    Pool pool;
    std::vector<std::shared_ptr<BasicConv>> chain;
    std::vector<std::shared_ptr<BasicConv>> fork;
  };

  std::shared_ptr<BasicConv> add(int64_t in, const ConvSpec& spec) {
    const bool keeps_size = spec.stride == 1;
    const Extent padding = {keeps_size ? spec.kernel[0] / 2 : 0,
                            keeps_size ? spec.kernel[1] / 2 : 0};
    return register_module(
        spec.name, std::make_shared<BasicConv>(in, spec.out, spec.kernel, spec.stride, padding));
  }

  std::vector<Branch> branches_;
  int64_t out_channels_ = 0;
};

constexpr Extent k1x1 = {1, 1}, k3x3 = {3, 3}, k5x5 = {5, 5}, k1x7 = {1, 7}, k7x1 = {7, 1},
                 k1x3 = {1, 3}, k3x1 = {3, 1};

using Branches = std::vector<BranchSpec>;

// 35 x 35 (figure 5 of the paper).
Branches inception_a(int64_t pool_features) {
  return {{.chain = {{"branch1x1", 64, k1x1}}},
          {.chain = {{"branch5x5_1", 48, k1x1}, {"branch5x5_2", 64, k5x5}}},
          {.chain = {{"branch3x3dbl_1", 64, k1x1},
                     {"branch3x3dbl_2", 96, k3x3},
                     {"branch3x3dbl_3", 96, k3x3}}},
          {.pool = Pool::average, .chain = {{"branch_pool", pool_features, k1x1}}}};
}

// 35 x 35 to 17 x 17 (figure 10).
Branches inception_b() {
  return {{.chain = {{"branch3x3", 384, k3x3, 2}}},
          {.chain = {{"branch3x3dbl_1", 64, k1x1},
                     {"branch3x3dbl_2", 96, k3x3},
                     {"branch3x3dbl_3", 96, k3x3, 2}}},
          {.pool = Pool::max, .chain = {}}};
}

// 17 x 17, 7x7 convolutions as pairs of 1x7 and 7x1 (figure 6).
Branches inception_c(int64_t middle) {
  return {{.chain = {{"branch1x1", 192, k1x1}}},
          {.chain = {{"branch7x7_1", middle, k1x1},
                     {"branch7x7_2", middle, k1x7},
                     {"branch7x7_3", 192, k7x1}}},
          {.chain = {{"branch7x7dbl_1", middle, k1x1},
                     {"branch7x7dbl_2", middle, k7x1},
                     {"branch7x7dbl_3", middle, k1x7},
                     {"branch7x7dbl_4", middle, k7x1},
                     {"branch7x7dbl_5", 192, k1x7}}},
          {.pool = Pool::average, .chain = {{"branch_pool", 192, k1x1}}}};
}

// 17 x 17 to 8 x 8.
Branches inception_d() {
  return {{.chain = {{"branch3x3_1", 192, k1x1}, {"branch3x3_2", 320, k3x3, 2}}},
          {.chain = {{"branch7x7x3_1", 192, k1x1},
                     {"branch7x7x3_2", 192, k1x7},
                     {"branch7x7x3_3", 192, k7x1},
                     {"branch7x7x3_4", 192, k3x3, 2}}},
          {.pool = Pool::max, .chain = {}}};
}

// 8 x 8, 3x3 convolutions split side by side (figure 7).
Branches inception_e() {
  return {{.chain = {{"branch1x1", 320, k1x1}}},
          {.chain = {{"branch3x3_1", 384, k1x1}},
           .fork = {{"branch3x3_2a", 384, k1x3}, {"branch3x3_2b", 384, k3x1}}},
          {.chain = {{"branch3x3dbl_1", 448, k1x1}, {"branch3x3dbl_2", 384, k3x3}},
           .fork = {{"branch3x3dbl_3a", 384, k1x3}, {"branch3x3dbl_3b", 384, k3x1}}},
          {.pool = Pool::average, .chain = {{"branch_pool", 192, k1x1}}}};
}

struct StemSpec {
  std::string name;
  int64_t out;
  Extent kernel;
  int64_t stride;
  int64_t padding;
  bool pool;  // followed by a 3x3 max-pool of stride 2
};

int64_t add_stem(Model& model, const ModelOptions& options) {
  const std::vector<StemSpec> specs = {{"Conv2d_1a_3x3", 32, k3x3, 2, 0, false},
                                       {"Conv2d_2a_3x3", 32, k3x3, 1, 0, false},
                                       {"Conv2d_2b_3x3", 64, k3x3, 1, 1, true},
                                       {"Conv2d_3b_1x1", 80, k1x1, 1, 0, false},
                                       {"Conv2d_4a_3x3", 192, k3x3, 1, 0, true}};
  int64_t in = options.in_channels;
  for (const StemSpec& spec : specs) {
    const Extent padding = {spec.padding, spec.padding};
    auto conv = model.place(
        spec.name, std::make_shared<BasicConv>(in, spec.out, spec.kernel, spec.stride, padding));
    const bool first = &spec == &specs.front();
    model.add_block({spec.name, {spec.name}, {}, [=, pool = spec.pool](const at::Tensor& input) {
                       if (first) check_images(input, options);
                       const at::Tensor features = conv->forward(input);
                       return pool ? at::max_pool2d(features, 3, 2) : features;
                     }});
    in = spec.out;
  }
  return in;
}

// Draws weights from N(0, 0.1), except those of batch norms. torchvision truncates the normal at
// +-2, twenty standard deviations away, which has no effect.
void init_weights(torch::nn::Module& module) {
  for (const auto& child : module.modules(/*include_self=*/false)) {
    if (auto* conv = child->as<Conv2d>()) {
      torch::nn::init::normal_(conv->weight, 0.0, 0.1);
    } else if (auto* linear = child->as<torch::nn::Linear>()) {
      torch::nn::init::normal_(linear->weight, 0.0, 0.1);
    }
  }
}

}  // namespace

std::shared_ptr<Model> make_inception(const ModelOptions& options) {
  require_at_least(options, "image_size", options.image_size, kSmallestImage);
  auto model = std::make_shared<Model>();
  int64_t channels = add_stem(*model, options);
  const std::vector<std::pair<std::string, Branches>> modules = {
      {"Mixed_5b", inception_a(32)},  {"Mixed_5c", inception_a(64)},
      {"Mixed_5d", inception_a(64)},  {"Mixed_6a", inception_b()},
      {"Mixed_6b", inception_c(128)}, {"Mixed_6c", inception_c(160)},
      {"Mixed_6d", inception_c(160)}, {"Mixed_6e", inception_c(192)},
      {"Mixed_7a", inception_d()},    {"Mixed_7b", inception_e()},
      {"Mixed_7c", inception_e()}};
  for (const auto& [name, branches] : modules) {
    auto mixed = std::make_shared<Mixed>(channels, branches);
    channels = mixed->out_channels();
    model->add_block(name, mixed);
  }

  auto dropout = model->place("dropout", std::make_shared<Dropout>(options.dropout));
  auto fc = model->place("fc", std::make_shared<Linear>(channels, options.num_classes));
  model->add_block({"head", {"fc"}, {}, [=](const at::Tensor& input) {
                      return fc->forward(dropout->forward(input.mean({2, 3})));
                    }});
  init_weights(*model);
  return model;
}

}  // namespace troika::nn
