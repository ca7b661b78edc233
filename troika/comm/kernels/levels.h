// Quantises numbers to blocks of 8-bit levels: the inner loops of codec int8, compiled once per
// instruction set. Like kernels/reduce.h, this header includes nothing with inline functions.
#pragma once

#include <cstddef>

namespace troika::comm::kernels {

// A block of `block` numbers is a row of bytes: its scale, then one level from -127 to 127 per
// number. A number is level * scale. In an incomplete last block the unused levels are 0.

// Quantises `count` numbers to rows, each number to the nearest level. `values` become the
// quantisation errors. A block with a NaN or an infinity gets a non-finite scale.
using ToLevels = void(void* values, size_t count, size_t block, bool is_double, char* rows);
// Converts rows back to numbers. Returns whether all scales were finite.
using FromLevels = bool(const char* rows, size_t count, size_t block, bool is_double, void* values);

ToLevels to_levels_baseline;
FromLevels from_levels_baseline;
// Only if TROIKA_X86_KERNELS is defined.
ToLevels to_levels_avx2, to_levels_avx512;
FromLevels from_levels_avx2, from_levels_avx512;

}  // namespace troika::comm::kernels
