// The arithmetic of optimizers: the same bits on every processor.
#include "troika/optim/kernels/kernels.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "troika/optim/dynamic_code.h"

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

  kernels::Span span() const {
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
            static_cast<size_t>(count)};
  }
  kernels::Type kernel() const {
    return type == at::kFloat ? kernels::Type::f32 : kernels::Type::f64;
  }

  at::ScalarType type;
  at::Tensor parameter, gradient, first, second, codes, largest;
};

// All kernels one after the other on the same memory; the sums as well.
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
  const auto signed_code = dynamic_code(true), unsigned_code = dynamic_code(false);
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
  table.adam_8bit(kernel, values.span8(), adam, signed_code, unsigned_code);
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

// A gradient of 0 with betas of 1 leaves moments to be read and written again.
TEST(DynamicCode, EveryCodeIsKeptThroughDecodingAndEncoding) {
  for (const bool has_sign : {true, false}) {
    const auto code = dynamic_code(has_sign);
    const auto parameter = at::zeros({256}, at::kFloat), gradient = at::zeros({256}, at::kFloat);
    const auto codes = at::arange(256, at::kByte), others = at::zeros({256}, at::kByte);
    float largest = 3, other_largest = 0;
    const kernels::Adam keep{1, 1, 0, 1, 1, 0, 1};
    const auto zero = dynamic_code(false);
    kernels::best().adam_8bit(kernels::Type::f32,
                              {parameter.data_ptr(), gradient.data_ptr(), codes.data_ptr<uint8_t>(),
                               &largest, others.data_ptr<uint8_t>(), &other_largest, 256},
                              keep, code, zero);
    EXPECT_TRUE(codes.equal(at::arange(256, at::kByte))) << has_sign;
    EXPECT_EQ(largest, 3);
  }
}

TEST(DynamicCode, IsThatOfThePaperAndRoundsToTheNearest) {
  const auto code = dynamic_code(true);
  EXPECT_EQ(code.decode[127], 0);
  EXPECT_EQ(code.decode[255], 1);
  EXPECT_NEAR(code.decode[128], 5.5e-7, 1e-12) << "the middle of the lowest decade";
  EXPECT_NEAR(code.decode[0], -0.99296875, 1e-7);
  EXPECT_NEAR(dynamic_code(false).decode[254], 0.99648438, 1e-7);
  for (const bool has_sign : {true, false}) {
    const auto table = dynamic_code(has_sign);
    // Numbers over all decades, the first the block's largest.
    const int64_t count = 2000;
    auto values = at::pow(10.0, at::linspace(0, -7.5, count, at::kDouble)).to(at::kFloat);
    if (has_sign) values = at::where(at::arange(count) % 2 == 0, values, -values);
    const auto parameter = at::zeros({count}, at::kFloat);
    const auto codes = at::full({count}, table.zero, at::kByte), others = at::zeros_like(codes);
    float largest = 0, other_largest = 0;
    const kernels::Adam take{0, 1, 0, 1, 1, 0, 1};
    kernels::best().adam_8bit(
        kernels::Type::f32,
        {parameter.data_ptr(), values.data_ptr(), codes.data_ptr<uint8_t>(), &largest,
         others.data_ptr<uint8_t>(), &other_largest, static_cast<size_t>(count)},
        take, table, dynamic_code(false));
    ASSERT_EQ(largest, 1);
    for (int64_t i = 0; i < count; ++i) {
      const double x = values.data_ptr<float>()[i];
      double least = 2;
      for (const float level : table.decode) least = std::min(least, std::abs(x - double(level)));
      EXPECT_NEAR(std::abs(x - double(table.decode[codes.data_ptr<uint8_t>()[i]])), least, 1e-8)
          << x;
    }
  }
}

}  // namespace
}  // namespace troika::optim
