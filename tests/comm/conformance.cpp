#include "tests/comm/conformance.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <random>

namespace troika::comm {

namespace {

// Values every rank can compute for every other: the oracle needs no communication.
at::Tensor values_of(int rank, int64_t count, at::ScalarType type) {
  const auto base = at::arange(count, at::kLong).remainder(7) + rank + 1;
  return base.remainder(5).to(type);
}

at::Tensor expected(int size, int64_t count, at::ScalarType type, ReduceOp op) {
  const bool whole = at::isIntegralType(type, /*includeBool=*/true);
  const auto wide = whole ? at::kLong : at::kDouble;
  auto total = values_of(0, count, type).to(wide);
  for (int r = 1; r < size; ++r) {
    const auto next = values_of(r, count, type).to(wide);
    if (op == ReduceOp::min) {
      total = at::minimum(total, next);
    } else if (op == ReduceOp::max) {
      total = at::maximum(total, next);
    } else if (op == ReduceOp::product) {
      total = total * next;
    } else {
      total = total + next;
    }
  }
  if (op == ReduceOp::average) total = whole ? total.div(size, "trunc") : total / size;
  return total.to(type);
}

void check_equal_on_all_ranks(Group& group, const at::Tensor& tensor) {
  const auto bytes = tensor.contiguous().view({-1}).to(at::kDouble);
  const auto all = at::empty({group.size(), bytes.numel()}, at::kDouble);
  group.all_gather(all, bytes);
  for (int r = 0; r < group.size(); ++r) {
    EXPECT_TRUE(all[r].equal(all[0])) << "rank " << r << " holds other bits than rank 0";
  }
}

// The relative error allowed in a type: in 16 bits, averages of several nodes are rounded when they
// are divided and once a level.
double tolerance(at::ScalarType type) {
  if (type == at::kHalf) return std::ldexp(1.5, -10);
  if (type == at::kBFloat16) return std::ldexp(1.5, -7);
  return 1e-5;
}

void check_all_reduce(Group& group) {
  const auto all_types = {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong,
                          at::kInt,    at::kShort, at::kChar, at::kByte,     at::kBool};
  for (const auto type : all_types) {
    for (const auto op :
         {ReduceOp::sum, ReduceOp::average, ReduceOp::min, ReduceOp::max, ReduceOp::product}) {
      if (type == at::kBool && op == ReduceOp::average) continue;
      // Products of small types would overflow for many ranks; that is not what is tested.
      if (op == ReduceOp::product && (type == at::kChar || type == at::kByte)) continue;
      for (const int64_t count : {0, 1, 2, 5, 1000}) {
        auto tensor = values_of(group.rank(), count, type);
        group.all_reduce(tensor, op);
        EXPECT_TRUE(at::allclose(tensor.to(at::kDouble),
                                 expected(group.size(), count, type, op).to(at::kDouble),
                                 tolerance(type)))
            << c10::toString(type) << " " << name(op) << " x " << count;
      }
    }
  }
}

void check_large_all_reduce(Group& group) {
  // Several segments a block, and a count that no number of ranks divides.
  const int64_t count = 3 * 1024 * 1024 + 11;
  auto tensor = at::sin(at::arange(count, at::kFloat) + static_cast<float>(group.rank()));
  auto sum = at::zeros({count}, at::kDouble);
  for (int r = 0; r < group.size(); ++r) {
    sum += at::sin(at::arange(count, at::kFloat) + static_cast<float>(r)).to(at::kDouble);
  }
  group.all_reduce(tensor);
  EXPECT_LT((tensor.to(at::kDouble) - sum).abs().max().item<double>(), 1e-6 * group.size());
  check_equal_on_all_ranks(group, tensor);
}

void check_half_sums_in_float(Group& group) {
  // 1 + n * 2^-9: each addition alone rounds away in bfloat16 (8 bits), their sum does not.
  auto tensor = at::full({3}, group.rank() == 0 ? 1.0 : std::exp2(-9), at::kBFloat16);
  group.all_reduce(tensor);
  const double exact = 1.0 + (group.size() - 1) * std::exp2(-9);
  const auto& nodes = group.nodes();
  if (std::ranges::count(nodes, nodes.front()) == group.size()) {
    EXPECT_TRUE(tensor.equal(at::full({3}, exact).to(at::kBFloat16))) << tensor << exact;
  } else {
    // Rounded inside the nodes and between them.
    EXPECT_LE((tensor.to(at::kDouble) - exact).abs().max().item<double>(),
              2 * std::exp2(-8) * exact);
  }
  check_equal_on_all_ranks(group, tensor);
  // The sum would be infinite.
  auto large = at::full({1000}, 60000, at::kHalf);
  group.all_reduce(large, ReduceOp::average);
  EXPECT_LE((large.to(at::kDouble) - 60000).abs().max().item<double>(), 2 * std::exp2(-10) * 60000);
}

// Through every way a back end has: buffers of its own and others, small and large.
template <typename Check>
void for_each_buffer(const Group& group, c10::ScalarType type, Check&& check) {
  for (const int64_t count : {1, 100, 100'000}) {
    check(at::empty({count}, type));
    check(group.allocate({count}, type));
  }
}

void check_nan(Group& group) {
  for (const auto type : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16}) {
    for (const auto op : {ReduceOp::min, ReduceOp::max}) {
      for_each_buffer(group, type, [&](const at::Tensor& tensor) {
        for (int who = 0; who < group.size(); ++who) {
          tensor.fill_(group.rank());
          if (group.rank() == who) tensor[tensor.numel() - 1].fill_(NAN);
          group.all_reduce(tensor, op);
          EXPECT_TRUE(tensor[tensor.numel() - 1].isnan().item<bool>())
              << c10::toString(type) << " " << name(op) << ", NaN on rank " << who;
          EXPECT_EQ(tensor.isnan().sum().item<int64_t>(), 1);
          group.reduce(tensor, who, op);
          EXPECT_TRUE(tensor[tensor.numel() - 1].isnan().item<bool>());
        }
      });
    }
  }
}

// The average is as if the sum had no limits, and is truncated.
void check_integer_averages(Group& group) {
  const int n = group.size();
  const auto extreme = [](c10::ScalarType type, int offset) {
    if (type == at::kByte) return int64_t{255 - offset};
    if (type == at::kChar) return int64_t{-128 + offset};
    if (type == at::kShort) return int64_t{-32768 + offset};
    if (type == at::kInt) return std::numeric_limits<int32_t>::max() - int64_t{offset};
    return std::numeric_limits<int64_t>::min() + offset;
  };
  for (const auto type : {at::kByte, at::kChar, at::kShort, at::kInt, at::kLong}) {
    // The average of the offsets, so that the whole average is truncated towards zero.
    const int sum = n * (n - 1) / 2;
    const int offset = sum / n + (sum % n != 0 ? 1 : 0);
    const int64_t mean = extreme(type, offset);
    for_each_buffer(group, type, [&](const at::Tensor& tensor) {
      tensor.fill_(extreme(type, group.rank()));
      group.all_reduce(tensor, ReduceOp::average);
      EXPECT_TRUE(tensor.eq(mean).all().item<bool>())
          << c10::toString(type) << " x " << tensor.numel() << ": " << tensor[0] << " for " << mean;
      tensor.fill_(extreme(type, group.rank()));
      group.reduce(tensor, n - 1, ReduceOp::average);
      EXPECT_TRUE(
          tensor.eq(group.rank() == n - 1 ? mean : extreme(type, group.rank())).all().item<bool>());
    });
    const auto input = at::full({n * 1000}, extreme(type, group.rank()), type);
    const auto output = at::empty({1000}, type);
    group.reduce_scatter(output, input, ReduceOp::average);
    EXPECT_TRUE(output.eq(mean).all().item<bool>()) << c10::toString(type);
  }
}

void check_non_contiguous(Group& group) {
  auto whole = at::zeros({4, 6});
  auto columns = whole.narrow(1, 1, 3).t();
  columns.fill_(group.rank() + 1.0);
  group.all_reduce(columns);
  const double sum = group.size() * (group.size() + 1) / 2.0;
  EXPECT_TRUE(columns.eq(sum).all().item<bool>());
  EXPECT_EQ(whole.sum().item<double>(), sum * 12) << "elements outside the view were touched";
}

void check_empty_and_scalar(Group& group) {
  auto empty = at::zeros({0, 3});
  group.all_reduce(empty);
  auto scalar = at::full({}, group.rank() + 1.0);
  group.all_reduce(scalar);
  EXPECT_EQ(scalar.item<double>(), group.size() * (group.size() + 1) / 2.0);
}

void check_shared_buffers(Group& group) {
  for (const int64_t count : {1, 100, 5000, 300'001}) {
    const auto shared = group.allocate({count}, at::kFloat);
    shared.fill_(group.rank() + 1.0);
    group.all_reduce(shared, ReduceOp::average);
    EXPECT_TRUE(shared.eq((group.size() + 1) / 2.0).all().item<bool>()) << count;
    // A part that does not begin where the buffer does.
    const auto part = shared.narrow(0, count / 2, count - count / 2);
    part.fill_(group.rank());
    group.all_reduce(part, ReduceOp::max);
    EXPECT_TRUE(part.eq(group.size() - 1).all().item<bool>()) << count;
  }
}

void check_reduce(Group& group) {
  for (int root = 0; root < group.size(); ++root) {
    for (const auto type : {at::kDouble, at::kBFloat16, at::kInt}) {
      const auto before = values_of(group.rank(), 101, type);
      auto tensor = before.clone();
      group.reduce(tensor, root);
      const auto after =
          group.rank() == root ? expected(group.size(), 101, type, ReduceOp::sum) : before;
      EXPECT_TRUE(tensor.equal(after)) << c10::toString(type) << " to " << root;
    }
  }
}

void check_parameters(Group& group) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    auto parameter = at::ones({100}, type).requires_grad_();
    group.all_reduce(parameter, ReduceOp::sum, {.algorithm = Algorithm::recursive_doubling});
    group.reduce(parameter, 0);
    EXPECT_TRUE(parameter.is_leaf() && parameter.requires_grad());
  }
}

void check_parts_outlive_the_whole(Group group) {
  const auto part = *group.split(0);
  std::optional<Group>(std::move(group)).reset();
  for (int round = 0; round < 3; ++round) {
    auto tensor = at::full({1000}, part.rank());
    part.all_reduce(tensor);
    EXPECT_TRUE(tensor.eq(part.size() * (part.size() - 1) / 2).all().item<bool>());
  }
}

// Other ranks may leave as soon as they have sent their part.
void check_leaving_at_once(Group& group) {
  auto all = at::zeros({group.size(), 1'000'000});
  group.gather(all, at::full({1'000'000}, group.rank() + 1.0F), 0);
  for (int r = 0; group.rank() == 0 && r < group.size(); ++r) {
    EXPECT_TRUE(all[r].eq(r + 1).all().item<bool>());
  }
}

void check_reduce_scatter(Group& group) {
  const int n = group.size();
  for (const auto type :
       {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kBool}) {
    for (const int64_t block : {1, 33, 40'000}) {
      const auto input = values_of(group.rank(), block * n, type);
      const auto before = input.clone();
      auto output = at::empty({block}, input.options());
      group.reduce_scatter(output, input);
      const auto whole = expected(n, block * n, type, ReduceOp::sum);
      EXPECT_TRUE(output.equal(whole.narrow(0, block * group.rank(), block)))
          << c10::toString(type) << " x " << block;
      EXPECT_TRUE(input.equal(before)) << "the input was written to";
    }
  }
  // Rank r gets r rows of three; rank 0 gets nothing.
  std::vector<int64_t> splits;
  for (int r = 0; r < n; ++r) splits.push_back(r * 50);
  const int64_t rows = int64_t{50} * n * (n - 1) / 2;
  const auto input = values_of(group.rank(), rows * 3, at::kDouble).view({rows, 3});
  auto output = at::empty({splits[static_cast<size_t>(group.rank())], 3}, at::kDouble);
  group.reduce_scatter(output, input, ReduceOp::average, splits);
  const auto whole = expected(n, rows * 3, at::kDouble, ReduceOp::average).view({rows, 3});
  const int64_t begin = int64_t{50} * group.rank() * (group.rank() - 1) / 2;
  EXPECT_TRUE(at::allclose(output, whole.narrow(0, begin, output.size(0))));
}

void check_reduce_scatter_and_all_gather_are_all_reduce(Group& group) {
  const int64_t block = 12'345;
  const auto input = at::sin(at::arange(block * group.size(), at::kDouble) + group.rank());
  auto own = at::empty({block}, at::kDouble);
  auto whole = at::empty_like(input);
  group.reduce_scatter(own, input);
  group.all_gather(whole, own);
  group.all_reduce(input);
  EXPECT_TRUE(at::allclose(whole, input, 1e-13, 1e-13));
}

// Calls of all sizes directly after each other: no call may use memory that other ranks still need
// for the previous one.
void check_sizes_in_turn(Group& group) {
  std::mt19937 random(7);  // the same on all ranks
  const int n = group.size();
  for (int i = 0; i < 90; ++i) {
    const auto count =
        static_cast<int64_t>(n + random() % (size_t{1} << (6 + random() % 12))) / n * n;
    auto values = values_of(group.rank(), count, at::kFloat);
    const auto sum = expected(n, count, at::kFloat, ReduceOp::sum);
    const auto mine = sum.narrow(0, group.rank() * count / n, count / n);
    if (i % 3 == 0) {
      group.all_reduce(values);
    } else if (i % 3 == 1) {
      auto own = at::empty({count / n});
      group.reduce_scatter(own, values);
      EXPECT_TRUE(own.equal(mine)) << i << ": " << count;
      group.all_gather(values, own);
    } else {
      if (group.rank() == i % n) values.copy_(sum);
      group.broadcast(values, i % n);
    }
    EXPECT_TRUE(values.equal(sum)) << i << ": " << count;
  }
}

}  // namespace

void conform(Group group) {
  check_all_reduce(group);
  check_large_all_reduce(group);
  check_half_sums_in_float(group);
  check_nan(group);
  check_integer_averages(group);
  check_non_contiguous(group);
  check_empty_and_scalar(group);
  check_shared_buffers(group);
  check_reduce(group);
  check_reduce_scatter(group);
  check_reduce_scatter_and_all_gather_are_all_reduce(group);
  check_sizes_in_turn(group);
  check_parameters(group);
  conform_in_moving(group);
  check_leaving_at_once(group);
  check_parts_outlive_the_whole(std::move(group));
}

}  // namespace troika::comm
