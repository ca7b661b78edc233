#include "troika/nn/precision.h"

#include <gmock/gmock.h>

#include "tests/support/errors.h"
#include "troika/compat/torch.h"
#include "troika/nn/zoo.h"

namespace troika::nn {
namespace {

TEST(NumericPrecision, HasLightningsNames) {
  struct Expected {
    const char* name;
    const char* canonical;
    at::ScalarType parameters;
    at::ScalarType compute;
  };
  const std::vector<Expected> table{{"32", "32", at::kFloat, at::kFloat},
                                    {"32-true", "32", at::kFloat, at::kFloat},
                                    {"64", "64", at::kDouble, at::kDouble},
                                    {"64-true", "64", at::kDouble, at::kDouble},
                                    {"bf16", "bf16-mixed", at::kFloat, at::kBFloat16},
                                    {"bf16-mixed", "bf16-mixed", at::kFloat, at::kBFloat16},
                                    {"16", "16-mixed", at::kFloat, at::kHalf},
                                    {"16-mixed", "16-mixed", at::kFloat, at::kHalf},
                                    {"bf16-true", "bf16-true", at::kBFloat16, at::kBFloat16},
                                    {"16-true", "16-true", at::kHalf, at::kHalf}};
  EXPECT_EQ(precision_names().size(), table.size());
  for (const auto& expected : table) {
    const NumericPrecision found = parse_precision(expected.name);
    EXPECT_EQ(found.name, expected.canonical);
    EXPECT_EQ(found.parameters, expected.parameters) << expected.name;
    EXPECT_EQ(found.compute, expected.compute) << expected.name;
    const std::string canonical = expected.canonical;
    EXPECT_EQ(found.is_mixed(), canonical.ends_with("-mixed")) << canonical;
    EXPECT_EQ(found.needs_masters(), canonical.ends_with("16-true")) << canonical;
    EXPECT_EQ(found.needs_scaler(), canonical.starts_with("16")) << canonical;
  }
  EXPECT_ERROR(parse_precision("bf16-mix"), ErrorKind::usage,
               "[nn] unknown precision; got bf16-mix (did you mean bf16-mixed?)");
}

// LibTorch's CPU kernels of float16 came with 2.x.
TEST(NumericPrecision, WhatTheDeviceCannotComputeIsRefused) {
  for (const char* name : {"32", "64", "bf16-mixed", "bf16-true"}) {
    EXPECT_NO_THROW(require_supported(parse_precision(name), at::kCPU)) << name;
  }
  for (const std::string name : {"16-mixed", "16-true"}) {
    if (compat::torch_version().starts_with("2")) {
      EXPECT_NO_THROW(require_supported(parse_precision(name), at::kCPU));
      continue;
    }
    EXPECT_ERROR(require_supported(parse_precision(name), at::kCPU), ErrorKind::usage,
                 "[nn] LibTorch " + compat::torch_version() +
                     " has no Half matrix products and convolutions on cpu; got precision " + name +
                     " (use bf" + name + ")");
  }
}

TEST(Autocast, ComputesInHalfAndKeepsGradientsWhole) {
  torch::manual_seed(1);
  const auto model = make_model({.name = "resnet20", .image_size = 8});
  const auto targets = torch::tensor({1, 2});
  at::Tensor logits, loss;
  {
    const Autocast autocast(parse_precision("bf16-mixed"), at::kCPU);
    logits = model->forward(at::randn({2, 3, 8, 8}));
    loss = at::cross_entropy_loss(logits, targets);
  }
  EXPECT_EQ(logits.scalar_type(), at::kBFloat16);
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  loss.backward();
  for (const auto& parameter : model->parameters()) {
    EXPECT_EQ(parameter.grad().scalar_type(), at::kFloat);
  }
  EXPECT_EQ(model->forward(at::randn({2, 3, 8, 8})).scalar_type(), at::kFloat);
}

TEST(Autocast, PutsBackWhatWasBefore) {
  using compat::autocast_state;
  const auto before = autocast_state(at::kCPU);
  ASSERT_FALSE(before.enabled);
  const compat::AutocastState bf16{true, at::kBFloat16};
  {
    const Autocast outer(parse_precision("bf16-mixed"), at::kCPU);
    EXPECT_EQ(autocast_state(at::kCPU), bf16);
    {
      const Autocast inner(parse_precision("32"), at::kCPU);
      EXPECT_FALSE(autocast_state(at::kCPU).enabled);
    }
    EXPECT_EQ(autocast_state(at::kCPU), bf16);
    try {
      const Autocast inner(parse_precision("32"), at::kCPU);
      throw std::runtime_error("out of it");
    } catch (const std::runtime_error&) {
      EXPECT_EQ(autocast_state(at::kCPU), bf16);
    }
  }
  EXPECT_EQ(autocast_state(at::kCPU), before);
}

// Weights are cast once within the outermost guard, and again within the next one.
TEST(Autocast, DropsCastWeightsWithTheOutermostGuard) {
  torch::nn::Conv2d conv(torch::nn::Conv2dOptions(1, 1, 1).bias(false));
  const auto precision = parse_precision("bf16-mixed");
  const auto set_weight = [&](double value) {
    const at::NoGradGuard no_grad;
    conv->weight.fill_(value);
  };
  const auto forward = [&] { return conv->forward(at::ones({1, 1, 1, 1})).item<double>(); };
  set_weight(1);
  {
    const Autocast outer(precision, at::kCPU);
    EXPECT_EQ(forward(), 1);
    { const Autocast inner(precision, at::kCPU); }
    set_weight(2);
    EXPECT_EQ(forward(), 1);
  }
  const Autocast next(precision, at::kCPU);
  EXPECT_EQ(forward(), 2);
}

}  // namespace
}  // namespace troika::nn
