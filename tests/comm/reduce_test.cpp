// The arithmetic of collectives: the same bits on every processor, and LibTorch's rounding.
#include "troika/comm/call/reduce.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "troika/comm/kernels/reduce.h"

namespace troika::comm {
namespace {

std::vector<const void*> addresses(const std::vector<at::Tensor>& tensors) {
  std::vector<const void*> found;
  for (const auto& tensor : tensors) found.push_back(tensor.data_ptr());
  return found;
}

at::Tensor reduced(const std::vector<at::Tensor>& terms, ReduceOp op, int divisor) {
  auto result = at::empty_like(terms[0]);
  void* into = result.data_ptr();
  reduce({&into, 1}, addresses(terms), static_cast<size_t>(result.numel()), result.scalar_type(),
         op, divisor);
  return result;
}

struct KernelRow {
  at::ScalarType type;
  kernels::Type kernel;
};
const KernelRow kRows[] = {{at::kDouble, kernels::Type::f64}, {at::kFloat, kernels::Type::f32},
                           {at::kHalf, kernels::Type::f16},   {at::kBFloat16, kernels::Type::bf16},
                           {at::kLong, kernels::Type::i64},   {at::kInt, kernels::Type::i32},
                           {at::kShort, kernels::Type::i16},  {at::kChar, kernels::Type::i8},
                           {at::kByte, kernels::Type::u8}};

TEST(Reduce, TheWidestVectorsGiveTheBitsOfTheNarrowest) {
  const auto random = at::detail::createCPUGenerator(7);
  for (const auto& [type, kernel] : kRows) {
    for (const int terms : {1, 2, 3, 5}) {
      for (const int64_t count : {1, 15, 64, 1027, 5000}) {
        std::vector<at::Tensor> values;
        for (int t = 0; t < terms; ++t) {
          values.push_back((at::randn({count}, random, at::kFloat) * 50).to(type));
        }
        for (const int divisor : {1, 3}) {
          auto narrow = at::empty({count}, type);
          void* into = narrow.data_ptr();
          kernels::reduce_baseline(&into, 1, addresses(values).data(), values.size(),
                                   static_cast<size_t>(count), kernel, kernels::Op::sum, divisor);
          EXPECT_TRUE(reduced(values, ReduceOp::sum, divisor).equal(narrow))
              << c10::toString(type) << " x " << count << " of " << terms;
        }
      }
    }
  }
}

TEST(Reduce, HalvesAreRoundedOnceAsLibTorchRoundsThem) {
  const auto random = at::detail::createCPUGenerator(8);
  for (const auto type : {at::kHalf, at::kBFloat16}) {
    std::vector<at::Tensor> terms;
    auto exact = at::zeros({10'000});
    for (int t = 0; t < 4; ++t) {
      terms.push_back((at::randn({10'000}, random, at::kFloat) * 1000).to(type));
      exact += terms.back().to(at::kFloat);
    }
    EXPECT_TRUE(reduced(terms, ReduceOp::average, 4).equal((exact / 4).to(type)));
    const auto special = at::tensor({NAN, INFINITY, -INFINITY, 1e-8F, 70'000.0F}).to(type);
    const auto kept = reduced({special}, ReduceOp::max, 1);
    EXPECT_TRUE(kept[0].isnan().item<bool>());
    EXPECT_TRUE(kept.narrow(0, 1, 4).equal(special.narrow(0, 1, 4)));
  }
}

struct Level {
  const char* name;
  kernels::Reduce* reduce;
};

std::vector<Level> levels_of_this_processor() {
  std::vector<Level> levels{{"baseline", kernels::reduce_baseline}};
#ifdef TROIKA_X86_KERNELS
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) {
    levels.push_back({"avx2", kernels::reduce_avx2});
  }
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    levels.push_back({"avx512", kernels::reduce_avx512});
  }
#endif
  return levels;
}

at::Tensor reduced_by(const Level& level, const KernelRow& row,
                      const std::vector<at::Tensor>& terms, kernels::Op op, int divisor = 1) {
  auto result = at::empty_like(terms[0]);
  void* into = result.data_ptr();
  level.reduce(&into, 1, addresses(terms).data(), terms.size(), static_cast<size_t>(result.numel()),
               row.kernel, op, divisor);
  return result;
}

TEST(Reduce, ANaNOfAnyTermIsAMinimumAndAMaximum) {
  for (const auto& row : kRows) {
    if (!at::isFloatingType(row.type)) continue;
    for (const auto& level : levels_of_this_processor()) {
      for (const size_t terms : {2, 3, 5}) {
        for (size_t which = 0; which < terms; ++which) {
          std::vector<at::Tensor> values;
          for (size_t t = 0; t < terms; ++t)
            values.push_back(at::full({1027}, static_cast<int64_t>(t), row.type));
          values[which].slice(0, 0, 1027, 2).fill_(NAN);
          for (const auto op : {kernels::Op::min, kernels::Op::max}) {
            const auto result = reduced_by(level, row, values, op);
            EXPECT_TRUE(result.isnan().equal(values[which].isnan()))
                << c10::toString(row.type) << " " << level.name << ", term " << which;
          }
        }
      }
    }
  }
}

TEST(Reduce, AveragesOfIntegersAreThoseOfTheirExactSums) {
  for (const auto& row : kRows) {
    if (!at::isIntegralType(row.type, false)) continue;
    const bool is_signed = row.type != at::kByte;
    const auto bits = static_cast<int>(8 * c10::elementSize(row.type)) - (is_signed ? 1 : 0);
    const auto largest = static_cast<int64_t>((uint64_t{1} << bits) - 1);
    for (const auto& level : levels_of_this_processor()) {
      for (const int terms : {2, 3, 7}) {
        // All largest but one, which is one less: cut off towards zero, both ways.
        std::vector<at::Tensor> high;
        std::vector<at::Tensor> low;
        for (int t = 0; t < terms; ++t) {
          high.push_back(at::full({1027}, largest - (t == 1), row.type));
          low.push_back(at::full({1027}, -largest + (t == 1), row.type));
        }
        EXPECT_TRUE(reduced_by(level, row, high, kernels::Op::sum, terms)
                        .eq(largest - 1)
                        .all()
                        .item<bool>())
            << c10::toString(row.type) << " " << level.name;
        if (!is_signed) continue;
        EXPECT_TRUE(
            reduced_by(level, row, low, kernels::Op::sum, terms).eq(1 - largest).all().item<bool>())
            << c10::toString(row.type) << " " << level.name;
      }
    }
  }
}

TEST(Reduce, WorksInPlaceAndIntoSeveralBuffers) {
  auto a = at::arange(3000, at::kInt);
  auto b = at::arange(3000, at::kInt) * 10;
  const std::vector<void*> into{a.data_ptr(), b.data_ptr()};
  reduce(into, addresses({a, b}), 3000, at::kInt, ReduceOp::sum);
  EXPECT_TRUE(a.equal(at::arange(3000, at::kInt) * 11));
  EXPECT_TRUE(b.equal(a));
}

}  // namespace
}  // namespace troika::comm
