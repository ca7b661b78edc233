#include "troika/comm/call/reduce.h"

#include <array>

#include "troika/base/best_kernel.h"
#include "troika/base/error.h"
#include "troika/comm/kernels/reduce.h"

namespace troika::comm {

namespace {

kernels::Type kernel_type(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Double:
      return kernels::Type::f64;
    case c10::ScalarType::Float:
      return kernels::Type::f32;
    case c10::ScalarType::Half:
      return kernels::Type::f16;
    case c10::ScalarType::BFloat16:
      return kernels::Type::bf16;
    case c10::ScalarType::Long:
      return kernels::Type::i64;
    case c10::ScalarType::Int:
      return kernels::Type::i32;
    case c10::ScalarType::Short:
      return kernels::Type::i16;
    case c10::ScalarType::Char:
      return kernels::Type::i8;
    case c10::ScalarType::Byte:
      return kernels::Type::u8;
    default:
      throw Error("comm", ErrorKind::usage,
                  {.what = "cannot reduce this type",
                   .got = c10::toString(type),
                   .expected = "a real number, an integer or a boolean"});
  }
}

kernels::Op kernel_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::min:
      return kernels::Op::min;
    case ReduceOp::max:
      return kernels::Op::max;
    case ReduceOp::product:
      return kernels::Op::product;
    default:
      return kernels::Op::sum;
  }
}

}  // namespace

std::string_view name(ReduceOp op) {
  constexpr std::array<std::string_view, 5> kNames{"sum", "average", "min", "max", "product"};
  return kNames.at(static_cast<size_t>(op));
}

void require_reducible(c10::ScalarType type) {
  if (type != c10::ScalarType::Bool) kernel_type(type);
}

void reduce(std::span<void* const> into, std::span<const void* const> terms, size_t count,
            c10::ScalarType type, ReduceOp op, int divisor) {
  static kernels::Reduce* const best =
      TROIKA_BEST_KERNEL(kernels::reduce_baseline, kernels::reduce_avx2, kernels::reduce_avx512);
  if (count == 0) return;
  best(into.data(), into.size(), terms.data(), terms.size(), count, kernel_type(type),
       kernel_op(op), divisor);
}

void divide(void* data, size_t count, c10::ScalarType type, int divisor) {
  const void* term = data;
  reduce({&data, 1}, {&term, 1}, count, type, ReduceOp::sum, divisor);
}

}  // namespace troika::comm
