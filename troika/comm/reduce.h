// Element-wise reduction of plain buffers: the arithmetic of every reducing collective.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <span>
#include <string_view>

namespace troika::comm {

// `average` is the sum divided by the number of ranks, the division done once, after summing. The
// average of integers is the exact sum's, divided towards zero; it does not overflow. `min` and
// `max` are NaN where any term is.
enum class ReduceOp { sum, average, min, max, product };

std::string_view name(ReduceOp op);

// Throws Error(usage) for types that cannot be reduced (complex, quantised). Booleans are reduced
// as uint8: their sum is "any", their product "all".
void require_reducible(c10::ScalarType type);

// into[j][i] = terms[0][i] (op) terms[1][i] (op) ..., divided by `divisor`, for every j and `count`
// elements. Halves and bfloat16 are computed in float32 and rounded once; `average` means the sum;
// with a divisor other than 1, integers are summed in a type that holds the sum, and divided
// towards zero. Only sums have a divisor. A buffer of `into` may be one of `terms`; other overlaps
// may not be. Runs with the widest vectors this processor has; the bits do not depend on them.
void reduce(std::span<void* const> into, std::span<const void* const> terms, size_t count,
            c10::ScalarType type, ReduceOp op, int divisor = 1);

// data[i] /= divisor.
void divide(void* data, size_t count, c10::ScalarType type, int divisor);

}  // namespace troika::comm
