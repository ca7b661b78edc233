// The messages of averagings: a head, and packed numbers. Internal to the room.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "troika/net/bytes.h"

namespace troika::swarm {

struct AveragingHead {
  enum class Kind : uint8_t {
    ready,     // the reducer has begun
    part,      // a contribution to the receiver's part, with its weight; no numbers if this is 0
    averaged,  // of the sender's part; its weight is the sum; without numbers if this is 0
    refused,   // the sender takes no more contributions of the receiver; the text says why
    left,      // the sender has ended its averaging
  };

  Kind kind = Kind::ready;
  uint64_t group = 0;
  uint64_t first = 0, count = 0;
  double weight = 0;
};

inline constexpr size_t kAveragingHead = 33;  // bytes
// More than any packing makes of a chunk.
inline constexpr size_t kMostAveraging = (size_t{512} << 10) * 5 / 4 + 4096;

inline std::string encoded(const AveragingHead& head) {
  std::string bytes(kAveragingHead, '\0');
  bytes[0] = static_cast<char>(head.kind);
  net::put(bytes.data() + 1, head.group);
  net::put(bytes.data() + 9, head.first);
  net::put(bytes.data() + 17, head.count);
  net::put(bytes.data() + 25, std::bit_cast<uint64_t>(head.weight));
  return bytes;
}

inline std::optional<AveragingHead> decoded_head(std::string_view bytes) {
  if (bytes.size() < kAveragingHead ||
      static_cast<uint8_t>(bytes[0]) > static_cast<uint8_t>(AveragingHead::Kind::left)) {
    return std::nullopt;
  }
  return AveragingHead{.kind = static_cast<AveragingHead::Kind>(bytes[0]),
                       .group = net::take<uint64_t>(bytes.data() + 1),
                       .first = net::take<uint64_t>(bytes.data() + 9),
                       .count = net::take<uint64_t>(bytes.data() + 17),
                       .weight = std::bit_cast<double>(net::take<uint64_t>(bytes.data() + 25))};
}

}  // namespace troika::swarm
