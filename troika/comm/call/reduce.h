// Element-wise reduction of plain buffers: the arithmetic of all reducing collectives.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <span>
#include <string_view>

namespace troika::comm {

// `average` is the sum divided once by the number of ranks, after summing. The average of integers
// is computed from the exact sum, rounded towards zero; it does not overflow. `min` and `max` are
// NaN if any term is NaN.
enum class ReduceOp { sum, average, min, max, product };

std::string_view name(ReduceOp op);

// Throws Error(usage) for types that cannot be reduced (complex, quantised). Booleans are reduced
// as uint8: their sum is "any", their product "all".
void require_reducible(c10::ScalarType type);

// Computes into[j][i] = terms[0][i] (op) terms[1][i] (op) ..., divided by `divisor`, for every j
// and `count` elements. Half and BFloat16 are computed in float32 and rounded once. `average` here
// means the sum. With a divisor other than 1, integers are summed in a type that can hold the sum,
// and divided towards zero; only sums may have a divisor. A buffer of `into` may also be one of
// `terms`; no other overlap is allowed. Uses the widest vectors of this processor; the result bits
// do not depend on them.
void reduce(std::span<void* const> into, std::span<const void* const> terms, size_t count,
            c10::ScalarType type, ReduceOp op, int divisor = 1);

// data[i] /= divisor.
void divide(void* data, size_t count, c10::ScalarType type, int divisor);

}  // namespace troika::comm
