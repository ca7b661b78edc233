#include <fmt/format.h>

#include <array>
#include <optional>
#include <utility>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/nn/dropout.h"
#include "troika/nn/layers.h"
#include "troika/nn/models.h"

namespace troika::nn {

namespace {

constexpr double kUnetSlope = 0.01;    // of the leaky ReLU
constexpr double kUnetEpsilon = 1e-5;  // of the instance norm

// A 3x3 convolution, dropout of channels, instance norm and leaky ReLU.
class UnetConv : public torch::nn::Module {
 public:
  UnetConv(int64_t in, int64_t out, double dropout)
      : conv_(register_module("conv", conv(in, out, 3))), dropout_(dropout) {}

  at::Tensor forward(const at::Tensor& input) {
    at::Tensor features = conv_->forward(input);
    if (is_training() && dropout_ > 0) features = features * kept_channels(features);
    // An instance norm is a group norm with one channel in each group.
    features = at::group_norm(features, features.size(1), /*weight=*/{}, /*bias=*/{}, kUnetEpsilon);
    return at::leaky_relu_(features, kUnetSlope);
  }

 private:
  at::Tensor kept_channels(const at::Tensor& features) const {
    return dropout(at::ones({features.size(0), features.size(1), 1, 1}, features.options()),
                   dropout_);
  }

  Conv2d conv_;
  double dropout_;
};

// The numbers of channels of a level: of its input, between its convolutions, and of its output.
struct UnetLevel {
  int64_t in, middle, out;
};

std::string skip_name(int64_t level) {
  return fmt::format("skip.{}", level);
}

// Doubles rows and columns, pads them to the skip's if these are odd, and concatenates both tensors
// by channel.
at::Tensor join_skip(const at::Tensor& input, const at::Tensor& skip) {
  const std::array<int64_t, 2> doubled{2 * input.size(2), 2 * input.size(3)};
  at::Tensor features = at::upsample_nearest2d(input, doubled);
  if (doubled[0] != skip.size(2) || doubled[1] != skip.size(3)) {
    features =
        at::constant_pad_nd(features, {0, skip.size(3) - doubled[1], 0, skip.size(2) - doubled[0]});
  }
  return at::cat({features, skip}, 1);
}

class UnetBuilder {
 public:
  UnetBuilder(Model& model, const ModelOptions& options) : model_(model), options_(options) {}

  // The last block gives the features as `skip`, and halves them for the next level.
  void add_encoder(int64_t level, const UnetLevel& channels) {
    add_convolutions(fmt::format("encoder.{}", level), channels, {}, skip_name(level));
  }
  void add_bottleneck(const UnetLevel& channels) {
    add_convolutions("bottleneck", channels, {}, {});
  }
  void add_decoder(int64_t level, const UnetLevel& channels) {
    add_convolutions(fmt::format("decoder.{}", level), channels, skip_name(level), {});
  }

 private:
  using Skip = std::optional<std::string>;

  void add_convolutions(const std::string& path, const UnetLevel& channels, const Skip& takes,
                        const Skip& gives) {
    const int64_t count = options_.convolutions;
    for (int64_t i = 0; i < count; ++i) {
      const bool first = i == 0, last = i + 1 == count;
      const std::string name = fmt::format("{}.{}", path, i);
      auto conv = model_.place(name, std::make_shared<UnetConv>(
                                         first ? channels.in : channels.middle,
                                         last ? channels.out : channels.middle, options_.dropout));
      Block block{.name = name, .owns = {name}, .borrows = {}, .forward = nullptr};
      const bool joins = first && takes, splits = last && gives;
      if (joins) block.takes.push_back(*takes);
      if (splits) block.gives.push_back(*gives);
      const bool checks = model_.blocks().empty();
      block.forward = [=, options = options_](const Tensors& inputs) -> Tensors {
        if (checks) check_images(inputs[0], options);
        at::Tensor features = conv->forward(joins ? join_skip(inputs[0], inputs[1]) : inputs[0]);
        if (!splits) return {std::move(features)};
        return {at::max_pool2d(features, 2), features};
      };
      model_.add_block(std::move(block));
    }
  }

  Model& model_;
  const ModelOptions& options_;
};

void check_unet(const ModelOptions& options) {
  require_at_least(options, "depth", options.depth, 1);
  require_at_least(options, "convolutions", options.convolutions, 1);
  require_at_least(options, "base_width", options.base_width, 2);
  constexpr int64_t kMostDepth = 16;
  if (options.depth > kMostDepth || options.image_size >> options.depth < 2) {
    throw Error(
        "nn", ErrorKind::usage,
        {.what = "unet halves its images too often",
         .got = fmt::format("depth {} for image_size {}", options.depth, options.image_size),
         .expected = "at least 2 rows and columns in the bottleneck",
         .hint = "an instance norm of one pixel is zero; set model.depth"});
  }
}

}  // namespace

std::shared_ptr<Model> make_unet(const ModelOptions& options) {
  check_unet(options);
  auto model = std::make_shared<Model>();
  UnetBuilder builder(*model, options);
  const auto width_of = [&](int64_t level) { return options.base_width << level; };
  for (int64_t level = 0; level < options.depth; ++level) {
    builder.add_encoder(level, {.in = level == 0 ? options.in_channels : width_of(level - 1),
                                .middle = width_of(level),
                                .out = width_of(level)});
  }
  builder.add_bottleneck({.in = width_of(options.depth - 1),
                          .middle = width_of(options.depth),
                          .out = width_of(options.depth - 1)});
  for (int64_t level = options.depth - 1; level >= 0; --level) {
    builder.add_decoder(
        level,
        {.in = 2 * width_of(level), .middle = width_of(level) / 2, .out = width_of(level) / 2});
  }
  auto last = model->place(
      "head",
      Conv2d(torch::nn::Conv2dOptions(options.base_width / 2, options.num_classes, 1).bias(false)));
  // Losses and metrics have the classes in the last dimension.
  model->add_block({"head", {"head"}, {}, [last](const at::Tensor& input) {
                      return last->forward(input).permute({0, 2, 3, 1});
                    }});
  return model;
}

}  // namespace troika::nn
