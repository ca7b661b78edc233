#include "tests/fuzz/mutate.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <limits>

namespace troika::fuzz {

namespace {

// A piece of a text of `size` bytes.
struct Piece {
  size_t start, length;
};

Piece piece_of(size_t size, Random& random) {
  const size_t start = random.below(size + 1);
  return {start, random.below(std::min<size_t>(size - start, 64) + 1)};
}

int64_t edge(Random& random) {
  constexpr std::array<int64_t, 12> kEdges{0,
                                           -1,
                                           1,
                                           127,
                                           128,
                                           255,
                                           256,
                                           65535,
                                           std::numeric_limits<int32_t>::max(),
                                           int64_t{1} << 32,
                                           std::numeric_limits<int64_t>::max(),
                                           std::numeric_limits<int64_t>::min()};
  return kEdges[random.below(kEdges.size())];
}

void put_number(std::string& input, Random& random) {
  const size_t width = size_t{1} << random.below(4);
  if (input.size() < width) return;
  const size_t at = random.below(input.size() - width + 1);
  const auto value = static_cast<uint64_t>(edge(random));
  const bool big_endian = random.below(2) == 0;
  for (size_t i = 0; i < width; ++i) {
    const size_t place = big_endian ? width - 1 - i : i;
    input[at + place] = static_cast<char>(value >> (8 * i));
  }
}

void put_decimal(std::string& input, Random& random) {
  const auto is_digit = [](unsigned char c) { return std::isdigit(c) != 0; };
  const auto from = input.begin() + static_cast<std::ptrdiff_t>(random.below(input.size() + 1));
  const auto first = std::find_if(from, input.end(), is_digit);
  if (first == input.end()) return;
  const auto last = std::find_if_not(first, input.end(), is_digit);
  input.replace(first, last, std::to_string(edge(random)));
}

void change(std::string& input, const std::vector<std::string>& others, Random& random) {
  const auto [start, length] = piece_of(input.size(), random);
  switch (random.below(8)) {
    case 0:
      if (!input.empty())
        input[random.below(input.size())] ^= static_cast<char>(1 << random.below(8));
      break;
    case 1:
      if (!input.empty()) input[random.below(input.size())] = static_cast<char>(random.below(256));
      break;
    case 2:
      put_number(input, random);
      break;
    case 3:
      put_decimal(input, random);
      break;
    case 4:
      input.erase(start, length);
      break;
    case 5: {
      const std::string piece = input.substr(start, length);
      input.insert(random.below(input.size() + 1), piece);
      break;
    }
    case 6: {
      const std::string piece = input.substr(start, length);
      input.erase(start, length);
      input.insert(random.below(input.size() + 1), piece);
      break;
    }
    default: {
      const std::string& other = others[random.below(others.size())];
      const auto [from, count] = piece_of(other.size(), random);
      input.replace(start, length, other, from, count);
    }
  }
}

}  // namespace

std::string mutated(std::string input, const std::vector<std::string>& others, size_t limit,
                    Random& random) {
  const uint64_t changes = 1 + random.below(8);
  for (uint64_t i = 0; i < changes; ++i) change(input, others, random);
  if (input.size() > limit) input.resize(limit);
  return input;
}

}  // namespace troika::fuzz
