// The arithmetic of optimizers: the same bits on every processor.
#include "troika/optim/kernels/kernels.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

namespace troika::optim {
namespace {

using kernels::Kernels;

struct Values {
  Values(int64_t count, at::ScalarType scalar_type) : type(scalar_type) {
    const auto random = at::detail::createCPUGenerator(7);
    for (auto* tensor : {&parameter, &gradient, &first, &second}) {
      *tensor = at::randn({count}, random, at::kDouble).to(type);
    }
    second.abs_();
    codes = at::randint(0, 256, {2, count}, random, at::kByte);
    largest = at::rand({2, count / kernels::kBlock + 1}, random, at::kFloat);
  }

  kernels::ParameterSpan span() const {
    return {parameter.data_ptr(), gradient.data_ptr(), first.data_ptr(), second.data_ptr(),
            static_cast<size_t>(parameter.numel())};
  }
  kernels::Span8 span8() const {
    const int64_t count = parameter.numel(), blocks = largest.size(1);
    return {parameter.data_ptr(),
            gradient.data_ptr(),
            codes.data_ptr<uint8_t>(),
            largest.data_ptr<float>(),
            codes.data_ptr<uint8_t>() + count,
            largest.data_ptr<float>() + blocks,
            static_cast<size_t>(count),
            /*step=*/5};
  }
  kernels::Type kernel() const {
    return type == at::kFloat ? kernels::Type::f32 : kernels::Type::f64;
  }

  at::ScalarType type;
  at::Tensor parameter, gradient, first, second, codes, largest;
};

// Runs all kernels one after the other on the same memory. Returns the memory and the sums.
std::vector<at::Tensor> run(const Kernels& table, int64_t count, at::ScalarType type) {
  const Values values(count, type);
  const auto kernel = values.kernel();
  const auto span = values.span();
  const kernels::Adam adam{.beta1 = 0.9,
                           .beta2 = 0.99,
                           .step_size = 0.1,
                           .inverse_root = 1.7,
                           .eps = 1e-8,
                           .weight_decay = 0.03,
                           .shrink = 0.99};
  const kernels::Lamb lamb{.beta1 = 0.9,
                           .beta2 = 0.99,
                           .correction = 1.3,
                           .inverse_root = 1.7,
                           .eps = 1e-6,
                           .weight_decay = 0.03};
  for (const bool nesterov : {false, true}) {
    table.sgd(kernel, span,
              {.rate = 0.1, .momentum = 0.9, .weight_decay = 0.03, .nesterov = nesterov});
  }
  table.adam(kernel, span, adam);
  values.first.abs_();  // now a sum of squares
  table.adagrad(kernel, span, {.rate = 0.1, .eps = 1e-10, .weight_decay = 0.03});
  const auto squares = table.squares(kernel, span);
  table.lars(kernel, span, {.rate = 0.1, .momentum = 0.9, .weight_decay = 0.03});
  const auto lamb_squares = table.lamb_moments(kernel, span, lamb);
  table.lamb_apply(kernel, span, lamb, 0.01);
  table.adam_8bit(kernel, values.span8(), adam);
  return {values.parameter,
          values.first,
          values.second,
          values.codes,
          values.largest,
          at::tensor({squares.parameter, squares.other, lamb_squares.parameter, lamb_squares.other},
                     at::kDouble)};
}

TEST(Kernels, TheWidestVectorsGiveTheBitsOfTheNarrowest) {
  for (const auto type : {at::kFloat, at::kDouble}) {
    for (const int64_t count : {1, 15, 64, 1027, 5000}) {
      const auto narrow = run(kernels::kBaseline, count, type);
      const auto wide = run(kernels::best(), count, type);
      for (size_t i = 0; i < narrow.size(); ++i) {
        EXPECT_TRUE(wide[i].equal(narrow[i])) << c10::toString(type) << " x " << count << ", " << i;
      }
      EXPECT_TRUE(narrow[0].isfinite().all().item<bool>());
    }
  }
}

TEST(Kernels, SquaresAreSummedExactlyEnough) {
  const Values values(5003, at::kFloat);
  const auto sums = kernels::best().squares(kernels::Type::f32, values.span());
  const auto square_sum = [](const at::Tensor& x) {
    return x.to(at::kDouble).pow(2).sum().item<double>();
  };
  EXPECT_NEAR(sums.parameter, square_sum(values.parameter), 1e-10 * sums.parameter);
  EXPECT_NEAR(sums.other, square_sum(values.gradient), 1e-10 * sums.other);
}

// Moments of up to one block, as a kernel keeps them.
struct Block {
  explicit Block(int64_t count)
      : first(at::zeros({count}, at::kByte)), second(at::zeros({count}, at::kByte)) {}

  // The step multiplies both moments by `rest`, and adds (1 - rest) times the gradient and its
  // square. Returns the parameters, initially 0, after an Adam step of the rate `size`.
  at::Tensor step(const at::Tensor& gradient, double rest, unsigned number, double size = 0) {
    const auto parameter = at::zeros_like(gradient);
    const auto type =
        gradient.scalar_type() == at::kFloat ? kernels::Type::f32 : kernels::Type::f64;
    kernels::best().adam_8bit(
        type,
        {parameter.data_ptr(), gradient.data_ptr(), first.data_ptr<uint8_t>(), &first_largest,
         second.data_ptr<uint8_t>(), &second_largest, static_cast<size_t>(first.numel()), number},
        {rest, rest, size, 1, 1e-30, 0, 1});
    return parameter;
  }
  void set(const at::Tensor& gradient, unsigned number = 1) { step(gradient, 0, number); }

  // Returns the values of the codes, by the definition in kernels.h.
  at::Tensor first_moments() const {
    const auto code = first.bitwise_and(127), sign = 1 - 2 * first.div(128, "floor").to(at::kInt);
    return decoded(code, first_largest, 127) * sign;
  }
  at::Tensor second_moments() const { return decoded(second, second_largest, 255); }

  at::Tensor first, second;
  float first_largest = 0, second_largest = 0;

 private:
  static at::Tensor decoded(const at::Tensor& codes, float largest, int top) {
    int exponent = 0;
    const int eighths = static_cast<int>(std::frexp(largest, &exponent) * 16);  // 8 to 15
    const auto position = codes.to(at::kDouble) - top + eighths - 8 + 8 * exponent;
    const auto octave = position.div(8, "floor");
    const auto level = at::pow(2.0, octave - 1) * (1 + (position - 8 * octave) / 8);
    return at::where(codes == 0, at::zeros_like(level), level);
  }
};

TEST(Codes8Bit, EveryCodeIsKeptThroughDecodingAndEncoding) {
  for (const float largest : {3.0F, 1.0F, std::ldexp(1.875F, -80), std::ldexp(1.25F, 100)}) {
    Block block(256);
    block.first = at::arange(256, at::kByte);
    block.first[128] = 0;  // a negative zero, which is written as 0
    block.second = at::arange(256, at::kByte);
    block.first_largest = block.second_largest = largest;
    const auto first = block.first.clone(), second = block.second.clone();
    for (unsigned step = 0; step < 20; ++step) {
      block.step(at::zeros({256}), 1, step);
      EXPECT_TRUE(block.first.equal(first)) << largest;
      EXPECT_TRUE(block.second.equal(second)) << largest;
      EXPECT_EQ(block.first_largest, largest);
      EXPECT_EQ(block.second_largest, largest);
    }
  }
}

// Magnitudes over nine decades, in both types, at many steps: the mean of the codes is the moment.
TEST(Codes8Bit, RoundToNeighboursAndKeepTheMean) {
  for (const auto type : {at::kFloat, at::kDouble}) {
    const auto size = at::pow(10.0, at::linspace(0, -4.6, 256, at::kDouble));
    const auto x = (size * at::where(at::arange(256) % 2 == 0, 1.0, -1.0)).to(type);
    const auto square = (x * x).to(at::kDouble);
    auto first = at::zeros({256}, at::kDouble), second = at::zeros({256}, at::kDouble);
    constexpr int kSteps = 500;
    for (int step = 1; step <= kSteps; ++step) {
      Block block(256);
      block.set(x, static_cast<unsigned>(step));
      const auto m = block.first_moments(), v = block.second_moments();
      EXPECT_LE(((m - x).abs() / size).max().item<double>(), 0.126);
      EXPECT_LE(((v - square).abs() / square).max().item<double>(), 0.126);
      first += m / kSteps;
      second += v / kSteps;
    }
    EXPECT_LE(((first - x).abs() / size).max().item<double>(), 1e-3);
    EXPECT_LE(((second - square).abs() / square).max().item<double>(), 1e-3);
  }
}

TEST(Codes8Bit, ASecondMomentThatIsNotZeroNeverBecomesZero) {
  auto x = at::pow(10.0, at::linspace(0, -18, 256, at::kDouble)).to(at::kFloat);
  Block block(256);
  for (unsigned step = 1; step < 50; ++step) {
    block.set(x, step);
    EXPECT_EQ(block.second.eq(0).sum().item<int64_t>(), 0);
  }
  // Denormal second moments, alone and beside larger ones.
  for (const double size : {1e-22, 2e-20, 1e-19}) {
    block.set(at::full({256}, size));
    EXPECT_EQ(block.second.eq(0).sum().item<int64_t>(), 0) << size;
    EXPECT_GE(block.second_largest, size * size);
  }
}

TEST(Codes8Bit, ZerosStayZeros) {
  Block block(256);
  for (unsigned step = 1; step < 20; ++step) {
    const auto parameter = block.step(at::zeros({256}), 0.9, step, /*size=*/1);
    EXPECT_TRUE(parameter.equal(at::zeros({256})));
  }
  auto one = at::zeros({256});
  one[7] = 1;
  for (unsigned step = 1; step < 20; ++step) block.step(one, 0.9, step);
  EXPECT_EQ(block.first.ne(0).sum().item<int64_t>(), 1);
  EXPECT_EQ(block.second.ne(0).sum().item<int64_t>(), 1);
}

TEST(Codes8Bit, WhatIsNotANumberShowsInItsWholeBlockAndStays) {
  for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    for (const auto type : {at::kFloat, at::kDouble}) {
      Block block(256);
      auto gradient = at::ones({256}, type);
      gradient[255] = bad;
      block.step(gradient, 0.9, 1);
      EXPECT_TRUE(std::isnan(block.first_largest)) << bad;
      const auto parameter = block.step(at::ones({256}, type), 0.9, 2, /*size=*/1);
      EXPECT_TRUE(parameter.isnan().all().item<bool>()) << bad;
      EXPECT_TRUE(std::isnan(block.first_largest) && std::isnan(block.second_largest)) << bad;
    }
  }
}

TEST(Codes8Bit, ASquareBeyondFloat32MakesShortSteps) {
  for (const auto type : {at::kFloat, at::kDouble}) {
    Block block(256);
    auto gradient = at::ones({256}, type);
    gradient[0] = 1e25;
    for (unsigned step = 1; step < 5; ++step) {
      const auto parameter = block.step(gradient, 0.9, step, /*size=*/1);
      EXPECT_TRUE(parameter.isfinite().all().item<bool>());
    }
    EXPECT_EQ(block.second_largest, std::ldexp(1.875F, 127));
  }
}

}  // namespace
}  // namespace troika::optim
