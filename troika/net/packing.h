// How the numbers of a sum or an average travel.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

namespace troika::net {

// Packs `count` numbers, of which the first is number `first` of the sum, in bytes(first, count)
// bytes, and unpacks them. The same on all members. A sum is packed and unpacked once for each
// member that adds to it.
template <typename Number>
struct Packing {
  std::function<size_t(size_t first, size_t count)> bytes;
  std::function<void(size_t first, std::span<const Number> numbers, std::span<char> to)> pack;
  std::function<void(size_t first, std::span<const char> from, std::span<Number> numbers)> unpack;
  // Numbers of one block may share packed bytes. Longer ranges that begin and end at multiples of
  // it pack as their blocks do.
  size_t block = 1;
};

}  // namespace troika::net
