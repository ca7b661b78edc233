#include "tests/comm/conformance.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

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
  group.all_gather(all, bytes).wait();
  for (int r = 0; r < group.size(); ++r) {
    EXPECT_TRUE(all[r].equal(all[0])) << "rank " << r << " holds other bits than rank 0";
  }
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
        group.all_reduce(tensor, op).wait();
        EXPECT_TRUE(at::allclose(tensor.to(at::kDouble),
                                 expected(group.size(), count, type, op).to(at::kDouble)))
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
  group.all_reduce(tensor).wait();
  EXPECT_LT((tensor.to(at::kDouble) - sum).abs().max().item<double>(), 1e-6 * group.size());
  check_equal_on_all_ranks(group, tensor);
}

void check_half_sums_in_float(Group& group) {
  // 1 + n * 2^-9: each addition alone rounds away in bfloat16 (8 bits), their sum does not.
  auto tensor = at::full({3}, group.rank() == 0 ? 1.0 : std::exp2(-9), at::kBFloat16);
  group.all_reduce(tensor).wait();
  const auto exact = at::full({3}, 1.0 + (group.size() - 1) * std::exp2(-9)).to(at::kBFloat16);
  EXPECT_TRUE(tensor.equal(exact)) << tensor << exact;
}

void check_non_contiguous(Group& group) {
  auto whole = at::zeros({4, 6});
  auto columns = whole.narrow(1, 1, 3).t();
  columns.fill_(group.rank() + 1.0);
  group.all_reduce(columns).wait();
  const double sum = group.size() * (group.size() + 1) / 2.0;
  EXPECT_TRUE(columns.eq(sum).all().item<bool>());
  EXPECT_EQ(whole.sum().item<double>(), sum * 12) << "elements outside the view were touched";
}

void check_broadcast(Group& group) {
  for (int root = 0; root < group.size(); ++root) {
    for (const auto type : {at::kFloat, at::kBFloat16, at::kBool, at::kLong}) {
      auto tensor = values_of(group.rank(), 100, type);
      group.broadcast(tensor, root).wait();
      EXPECT_TRUE(tensor.equal(values_of(root, 100, type))) << c10::toString(type) << root;
    }
  }
  auto empty = at::zeros({0});
  group.broadcast(empty).wait();
}

void check_all_gather(Group& group) {
  auto all = at::empty({group.size(), 2, 3});
  group.all_gather(all, at::full({2, 3}, group.rank() + 0.5)).wait();
  for (int r = 0; r < group.size(); ++r) EXPECT_TRUE(all[r].eq(r + 0.5).all().item<bool>());
}

void check_text(Group& group) {
  const std::string own(static_cast<size_t>(group.rank()) * 10,
                        static_cast<char>('a' + group.rank()));
  const auto all = group.all_gather_text(own);
  ASSERT_EQ(all.size(), static_cast<size_t>(group.size()));
  EXPECT_EQ(all[static_cast<size_t>(group.rank())], own);
  EXPECT_EQ(all[0], "");
  EXPECT_EQ(group.broadcast_text(group.rank() == 0 ? "hello" : "other"), "hello");
}

void check_order_of_queued_calls(Group& group) {
  std::vector<at::Tensor> tensors;
  std::vector<Work> work;
  for (int i = 0; i < 20; ++i) {
    tensors.push_back(at::full({1 + i * 100}, i + group.rank(), at::kDouble));
    work.push_back(group.all_reduce(tensors.back(), ReduceOp::max));
  }
  for (const auto& w : work) w.wait();
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(tensors[static_cast<size_t>(i)].eq(i + group.size() - 1).all().item<bool>());
  }
}

}  // namespace

void conform(Group group) {
  group.barrier("start");
  check_all_reduce(group);
  check_large_all_reduce(group);
  check_half_sums_in_float(group);
  check_non_contiguous(group);
  check_broadcast(group);
  check_all_gather(group);
  check_text(group);
  check_order_of_queued_calls(group);
  group.barrier("end");
}

}  // namespace troika::comm
