// Mutations of an input, after those of libFuzzer and AFL.
#pragma once

#include <string>
#include <vector>

#include "troika/base/random.h"

namespace troika::fuzz {

// One to eight changes of `input`: bits, bytes, numbers of 1 to 8 bytes at the edges of their
// range, decimal numbers, pieces removed, repeated, moved, or taken from `others`. At most `limit`
// bytes.
std::string mutated(std::string input, const std::vector<std::string>& others, size_t limit,
                    Random& random);

}  // namespace troika::fuzz
