// Numbers as blocks of 8-bit levels: the inner loops of codec int8, compiled once per instruction
// set. Like kernels.h, it includes nothing inline.
#pragma once

#include <cstddef>

namespace troika::comm::kernels {

// A block of `block` numbers is a row of bytes: its scale, then a level from -127 to 127 for each.
// A number stands for level * scale. In a last block that is not full, the other levels are 0.

// Writes the rows of `count` numbers, each to the nearest level; `values` become what that leaves
// out. A block with a NaN or an infinity gets a scale that is none of the finite numbers.
using ToLevels = void(void* values, size_t count, size_t block, bool is_double, char* rows);
// The other way. Returns whether all scales were finite.
using FromLevels = bool(const char* rows, size_t count, size_t block, bool is_double, void* values);

ToLevels to_levels_baseline;
FromLevels from_levels_baseline;
// Where TROIKA_X86_KERNELS is defined.
ToLevels to_levels_avx2, to_levels_avx512;
FromLevels from_levels_avx2, from_levels_avx512;

}  // namespace troika::comm::kernels
