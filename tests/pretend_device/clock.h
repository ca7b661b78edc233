// Vector clocks of the pretend device's streams. They tell which work is ordered before which.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace troika::pretend {

inline constexpr int kDevices = 4;
// The number of streams of a device: the default stream and those of its pool.
inline constexpr int kStreamsEach = 9;
inline constexpr int kStreams = kDevices * kStreamsEach;

// For each stream, the number of pieces of work that are ordered before the clock's owner.
struct Clock {
  std::array<uint64_t, kStreams> counts{};

  uint64_t& operator[](int stream) { return counts[static_cast<size_t>(stream)]; }
  uint64_t operator[](int stream) const { return counts[static_cast<size_t>(stream)]; }
  void join(const Clock& other) {
    for (size_t i = 0; i < counts.size(); ++i) counts[i] = std::max(counts[i], other.counts[i]);
  }
};

}  // namespace troika::pretend
