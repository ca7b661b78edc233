#include "troika/comm/nccl/launch.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <functional>
#include <vector>

namespace troika::comm::nccl {

namespace {

using compat::NcclProcessGroup;
using compat::NcclWork;

bool has_arithmetic(c10::ScalarType type) {
  constexpr std::array kTypes{at::kDouble, at::kFloat, at::kHalf, at::kBFloat16,
                              at::kChar,   at::kByte,  at::kInt,  at::kLong};
  return std::ranges::find(kTypes, type) != kTypes.end();
}

// NCCL may drop NaNs from minima and maxima, and a sum of 64-bit integers may overflow.
bool has_reduction(const Call& call) {
  if (!has_arithmetic(call.type)) return false;
  if (call.reduce_op == ReduceOp::min || call.reduce_op == ReduceOp::max) {
    return c10::isIntegralType(call.type, /*includeBool=*/false);
  }
  return call.reduce_op != ReduceOp::average || call.type != at::kLong;
}

bool even(const std::vector<int64_t>& counts) {
  return std::ranges::adjacent_find(counts, std::not_equal_to{}) == counts.end();
}

// An average is a sum that is divided afterwards: NCCL's own average divides, and rounds, each
// term.
c10d::ReduceOp nccl_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::min:
      return c10d::ReduceOp::MIN;
    case ReduceOp::max:
      return c10d::ReduceOp::MAX;
    case ReduceOp::product:
      return c10d::ReduceOp::PRODUCT;
    default:
      return c10d::ReduceOp::SUM;
  }
}

at::Tensor bytes_of(const at::Tensor& tensor) {
  return at::from_blob(tensor.data_ptr(), {static_cast<int64_t>(tensor.nbytes())},
                       tensor.options().dtype(at::kByte).requires_grad(false));
}

NcclWork all_reduce(NcclProcessGroup& group, const Call& call) {
  std::vector<at::Tensor> in_place{call.output};
  c10d::AllreduceOptions options;
  options.reduceOp = nccl_op(call.reduce_op);
  return group.allreduce(in_place, options);
}

NcclWork reduce(NcclProcessGroup& group, const Call& call) {
  std::vector<at::Tensor> in_place{call.output};
  c10d::ReduceOptions options;
  options.reduceOp = nccl_op(call.reduce_op);
  options.rootRank = call.root;
  return group.reduce(in_place, options);
}

NcclWork reduce_scatter(NcclProcessGroup& group, const Call& call) {
  at::Tensor input = call.input;
  at::Tensor output = call.output;
  c10d::ReduceScatterOptions options;
  options.reduceOp = nccl_op(call.reduce_op);
  return group._reduce_scatter_base(output, input, options);
}

NcclWork all_gather(NcclProcessGroup& group, const Call& call) {
  at::Tensor input = bytes_of(call.input);
  at::Tensor output = bytes_of(call.output);
  return group._allgather_base(output, input);
}

NcclWork broadcast(NcclProcessGroup& group, const Call& call) {
  std::vector<at::Tensor> in_place{bytes_of(call.output)};
  c10d::BroadcastOptions options;
  options.rootRank = call.root;
  return group.broadcast(in_place, options);
}

}  // namespace

bool knows(const Call& call) {
  switch (call.operation) {
    case Operation::all_reduce:
      return has_reduction(call) && call.algorithm == Algorithm::automatic;
    case Operation::reduce:
      return has_reduction(call);
    case Operation::reduce_scatter:
      return has_reduction(call) && even(call.input_counts);
    case Operation::all_gather:
      return even(call.output_counts);
    case Operation::broadcast:
      return true;
    default:
      return false;
  }
}

Launch launch_of(const Call& call) {
  return [call](NcclProcessGroup& group) {
    switch (call.operation) {
      case Operation::all_reduce:
        return all_reduce(group, call);
      case Operation::reduce:
        return reduce(group, call);
      case Operation::reduce_scatter:
        return reduce_scatter(group, call);
      case Operation::all_gather:
        return all_gather(group, call);
      default:
        return broadcast(group, call);
    }
  };
}

void divide(const at::Tensor& tensor, int divisor) {
  // Divides by a tensor, because the device would multiply by the reciprocal of a number. Integers
  // are divided in a type that holds any divisor.
  if (at::isIntegralType(tensor.scalar_type(), /*includeBool=*/false)) {
    const auto wide = tensor.to(at::kLong);
    tensor.copy_(wide.div_(at::full({}, divisor, wide.options()), "trunc"));
  } else {
    tensor.div_(at::full({}, divisor, tensor.options()));
  }
}

}  // namespace troika::comm::nccl
