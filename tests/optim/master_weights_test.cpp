#include "troika/optim/master_weights.h"

#include <gmock/gmock.h>

#include "tests/support/errors.h"
#include "troika/compat/torch.h"
#include "troika/optim/optimizer.h"

namespace troika::optim {
namespace {

TEST(MasterWeights, AddUpStepsThatHalfPrecisionLoses) {
  for (const auto type : {at::kHalf, at::kBFloat16}) {
    const auto weight = at::ones({3, 2}, type), bias = at::ones({3}, type);
    MasterWeights masters({{"weight", weight}, {"bias", bias, /*decay=*/false}});
    const auto optimizer =
        make_optimizer(masters.list(), {.name = "sgd", .lr = 1.0 / 4096, .momentum = 0});
    for (int step = 0; step < 256; ++step) {
      weight.mutable_grad() = at::ones({3, 2}, type);
      bias.mutable_grad() = at::zeros({3}, type);
      masters.take_gradients();
      optimizer->step();
      masters.give_weights();
    }
    EXPECT_TRUE(masters.list()[0].tensor.equal(at::full({3, 2}, 1 - 256.0 / 4096)));
    EXPECT_TRUE(weight.equal(at::full({3, 2}, 1 - 256.0 / 4096, type))) << type;
    EXPECT_TRUE(bias.equal(at::ones({3}, type)));
  }
}

TEST(MasterWeights, LieSideBySideUnderTheNamesOfTheirParameters) {
  const MasterWeights masters(
      {{"a", at::ones({2, 3}, at::kHalf)}, {"b", at::full({4}, 2, at::kHalf), false}});
  const auto& list = masters.list();
  EXPECT_EQ(list[0].name, "a");
  EXPECT_EQ(list[1].name, "b");
  EXPECT_TRUE(list[0].decay);
  EXPECT_FALSE(list[1].decay);
  EXPECT_EQ(list[1].tensor.data_ptr<float>(), list[0].tensor.data_ptr<float>() + 6);
  EXPECT_TRUE(list[1].tensor.equal(at::full({4}, 2.0F)));
}

TEST(MasterWeights, LieAsTheirParameters) {
  const auto weight =
      at::randn({2, 3, 2, 2}).to(at::kHalf).contiguous(at::MemoryFormat::ChannelsLast);
  const MasterWeights masters({{"weight", weight}});
  EXPECT_EQ(masters.list()[0].tensor.strides(), weight.strides());
  EXPECT_TRUE(masters.list()[0].tensor.equal(weight.to(at::kFloat)));
}

TEST(MasterWeights, WithoutAGradientAParameterStays) {
  const auto first = at::ones({2}, at::kBFloat16), second = at::ones({2}, at::kBFloat16);
  MasterWeights masters({{"first", first}, {"second", second}});
  const auto optimizer = make_optimizer(masters.list(), {.name = "sgd", .lr = 0.5, .momentum = 0});
  first.mutable_grad() = at::ones({2}, at::kBFloat16);
  second.mutable_grad() = at::ones({2}, at::kBFloat16);
  masters.take_gradients();
  second.mutable_grad() = at::Tensor();
  masters.take_gradients();
  optimizer->step();
  masters.give_weights();
  EXPECT_EQ(first[0].item<float>(), 0.5F);
  EXPECT_EQ(second[0].item<float>(), 1.0F);
}

TEST(MasterWeights, RefusesWhatNeedsNone) {
  EXPECT_ERROR(MasterWeights({{"w", at::ones({2})}}), ErrorKind::usage,
               "[optim] master weights are for half precision; got w of Float, expected Half or "
               "BFloat16");
}

}  // namespace
}  // namespace troika::optim
