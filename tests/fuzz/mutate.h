// Mutations of an input, like those of libFuzzer and AFL.
#pragma once

#include <string>
#include <vector>

#include "troika/base/random.h"

namespace troika::fuzz {

// Returns `input` with one to eight changes: bits, bytes, numbers of 1 to 8 bytes at the ends of
// their range, decimal numbers, and pieces that are removed, repeated, moved, or copied from
// `others`. The result has at most `limit` bytes.
std::string mutated(std::string input, const std::vector<std::string>& others, size_t limit,
                    Random& random);

}  // namespace troika::fuzz
