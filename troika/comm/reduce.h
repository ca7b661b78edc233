// Element-wise reduction of plain buffers: the arithmetic of every reducing collective.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <string_view>

namespace troika::comm {

// `average` is the sum divided by the number of ranks, the division done once, after summing.
enum class ReduceOp { sum, average, min, max, product };

std::string_view name(ReduceOp op);

// Types sums are computed in: half-precision values are reduced as float32 and rounded once at the
// end, booleans as uint8 (sum is "any", product is "all"), everything else as itself. Throws
// Error(usage) for types that cannot be reduced (complex, quantised).
c10::ScalarType accumulation_type(c10::ScalarType type);

// into[i] = into[i] (op) from[i] for `count` elements of an accumulation type. No aliasing.
void reduce_into(void* into, const void* from, size_t count, c10::ScalarType type, ReduceOp op);

// The last step of `average`: data[i] /= ranks (integers round towards zero).
void divide(void* data, size_t count, c10::ScalarType type, int ranks);

}  // namespace troika::comm
