#include "troika/nn/memory_format.h"

#include <gtest/gtest.h>

#include "tests/support/errors.h"
#include "troika/compat/torch.h"
#include "troika/nn/state.h"
#include "troika/nn/zoo.h"

namespace troika::nn {
namespace {

TEST(MemoryFormat, AutoGoesByTheTypeOfConvolutions) {
  const auto of = [](const char* name, const char* precision) {
    return parse_memory_format(name, parse_precision(precision));
  };
  for (const char* precision : {"32", "64", "bf16-mixed", "bf16-true", "16-mixed"}) {
    const bool is_half = std::string(precision).find("16") != std::string::npos;
    EXPECT_EQ(of("auto", precision),
              is_half ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous);
    EXPECT_EQ(of("contiguous", precision), at::MemoryFormat::Contiguous);
    EXPECT_EQ(of("channels_last", precision), at::MemoryFormat::ChannelsLast);
  }
  EXPECT_ERROR(of("channel_last", "32"), ErrorKind::usage,
               "[nn] unknown memory format; got channel_last (did you mean channels_last?)");
}

TEST(MemoryFormat, WeightsOfConvolutionsAreLaidOutInPlace) {
  const auto model = make_model({.name = "resnet18_cifar"});
  const auto state = named_state(*model);
  std::vector<at::Tensor> before;
  for (const auto& entry : state) before.push_back(entry.second.detach().clone());
  for (const auto format : {at::MemoryFormat::ChannelsLast, at::MemoryFormat::Contiguous}) {
    lay_out(*model, format);
    for (size_t i = 0; i < state.size(); ++i) {
      const auto& tensor = state[i].second;
      EXPECT_TRUE(tensor.equal(before[i])) << state[i].first;
      EXPECT_TRUE(tensor.is_contiguous(tensor.dim() == 4 ? format : at::MemoryFormat::Contiguous))
          << state[i].first;
      EXPECT_TRUE(tensor.is_leaf()) << state[i].first;
    }
  }
}

// Through the whole network: intermediate tensors keep the memory format of the input.
TEST(MemoryFormat, ModelsKeepIt) {
  for (const char* name : {"resnet18", "resnet20", "resnet50_cifar", "vgg11_bn_cifar"}) {
    const ModelOptions options{.name = name, .image_size = 64};
    torch::manual_seed(1);
    const auto model = make_model(options);
    model->eval();
    const torch::NoGradGuard no_grad;
    const auto input = example_input(options, 2);
    const auto expected = model->forward(input);
    lay_out(*model, at::MemoryFormat::ChannelsLast);
    auto features = input.contiguous(at::MemoryFormat::ChannelsLast);
    for (const auto& block : model->blocks()) {
      if (features.dim() == 4) {
        EXPECT_TRUE(features.is_contiguous(at::MemoryFormat::ChannelsLast))
            << name << " before " << block.name;
      }
      features = block.forward(features);
    }
    EXPECT_TRUE(features.allclose(expected, 1e-4, 1e-4)) << name;
  }
}

}  // namespace
}  // namespace troika::nn
