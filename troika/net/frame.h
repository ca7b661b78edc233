// The frames that connections between endpoints carry after the handshake. A frame is a head of
// fixed size and a payload.
//
// A message of at most kEagerBytes is a single frame. A longer message is first announced. The
// receiver grants it once it has a buffer; then data frames carry the payload over any of the
// connection's sockets, in any order, each directly to its place in the buffer. Messages and
// announcements cost the sender credit, which the receiver returns once it has consumed them. A
// receiver that is slow on one channel does not block the others: when its unconsumed messages hold
// a quarter of the credit, further messages are announced too, which costs little credit.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "troika/net/endpoint.h"

namespace troika::net {

enum class FrameKind : uint8_t {
  message,   // channel; the payload is the message
  announce,  // channel, id, and size of the message
  grant,     // id
  refuse,    // id; the receiver has no buffer or memory of this size
  data,      // id, and offset in the message
  credit,    // size: the credit that is returned
  hold,      // unconsumed messages hold much of the credit: announce all messages until credit is
             // returned
  bye,       // the sender closes the connection on purpose; nothing follows
};
inline constexpr FrameKind kLastFrameKind = FrameKind::bye;

inline constexpr size_t kFrameHead = 32;
// Longer messages are announced. Has room for 256 KiB of values and a head.
inline constexpr size_t kEagerBytes = size_t{257} << 10;
// The maximum payload of a frame in bytes. It fits in a second-level cache during encryption and
// bounds how long an urgent message waits.
inline constexpr size_t kMaxFramePayload = kEagerBytes;
// The initial credit of a peer in bytes. Bounds the memory that a peer can occupy at an endpoint.
inline constexpr size_t kCreditWindow = size_t{2} << 20;
// The part of the credit that is reserved for announcements.
inline constexpr size_t kAnnounceCredit = size_t{512} << 10;
// A receiver whose unconsumed messages hold more credit than this sends `hold`.
inline constexpr size_t kHoldFrom = kCreditWindow / 4;
// Consumed credit is returned when it reaches this amount.
inline constexpr size_t kCreditBack = kCreditWindow / 4;
// Guarantees progress: when a sender runs out of credit, its receiver has either returned credit or
// sent `hold`.
static_assert(kCreditWindow - kAnnounceCredit - kEagerBytes > kCreditBack + kHoldFrom);

struct FrameHead {
  FrameKind kind{};
  uint32_t length = 0;  // of the payload, in bytes
  Channel channel = 0;
  uint64_t id = 0;    // of an announced message; unique per sender and connection
  uint64_t size = 0;  // or the offset of data

  bool operator==(const FrameHead&) const = default;
};

// Returns the credit that a message or an announcement with this head costs.
inline size_t credit_cost(const FrameHead& head) {
  return 64 + (head.kind == FrameKind::message ? head.length : 0);
}

// Layout, little-endian: u8 kind, 3 zero bytes, u32 length, u64 channel, u64 id, u64 size.
void encode(const FrameHead& head, std::span<char, kFrameHead> bytes);
// Throws Error(net, failure) for invalid bytes, including a length that is invalid for the kind.
FrameHead decode(std::span<const char, kFrameHead> bytes);

}  // namespace troika::net
