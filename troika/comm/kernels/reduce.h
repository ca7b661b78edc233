// The inner loops of reduce(), compiled once per instruction set. These files include no header
// with inline functions: the linker could use a function compiled for one processor on all
// processors.
#pragma once

#include <cstddef>

namespace troika::comm::kernels {

enum class Type { f64, f32, f16, bf16, i64, i32, i16, i8, u8 };
enum class Op { sum, min, max, product };

using Reduce = void(void* const* into, size_t into_count, const void* const* terms,
                    size_t term_count, size_t count, Type type, Op op, int divisor);

Reduce reduce_baseline;
// Defined only if TROIKA_X86_KERNELS is.
Reduce reduce_avx2;
Reduce reduce_avx512;

}  // namespace troika::comm::kernels
