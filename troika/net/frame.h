// After the handshake, connections between endpoints carry frames: a head of fixed size and a
// payload.
//
// A message of at most kEagerBytes is one frame. A longer one is announced; the receiver grants it
// when it has a buffer, and data frames then bring the payload, over any of the pair's sockets and
// in any order, each straight to its place. Whoever sends messages or announcements pays for them
// with credit, which comes back when the receiver has consumed them. Messages that their receiver
// is long in taking do not keep those of other channels from arriving: when they hold an eighth of
// the credit, further ones are announced too, which costs little.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "troika/net/endpoint.h"

namespace troika::net {

enum class FrameKind : uint8_t {
  message,   // channel; the payload is the message
  announce,  // channel, id, size of the message
  grant,     // id
  refuse,    // id; the receiver has no room
  data,      // id, offset in the message
  credit,    // size: so much credit comes back
  hold,      // messages that nobody takes use up the credit: announce all until some comes back
  bye,       // the sender ends the connection on purpose; nothing follows
};
inline constexpr FrameKind kLastFrameKind = FrameKind::bye;

inline constexpr size_t kFrameHead = 32;
// Longer messages are announced.
inline constexpr size_t kEagerBytes = size_t{64} << 10;
// Bytes of a frame's payload. A processor's second-level cache holds it while it is encrypted, and
// an urgent message waits for no more.
inline constexpr size_t kMaxFramePayload = size_t{256} << 10;
// Bytes of credit that a peer begins with: no peer makes an endpoint hold more than this.
inline constexpr size_t kCreditWindow = size_t{1} << 20;
// Part of it that only announcements may use.
inline constexpr size_t kAnnounceCredit = kCreditWindow / 2;
// A receiver that holds more than this of what nobody takes says `hold`.
inline constexpr size_t kHoldFrom = kCreditWindow / 8;
// So much that was consumed is given back at once.
inline constexpr size_t kCreditBack = kCreditWindow / 4;
// A sender that waits for credit has sent more than what may be consumed and not given back, and
// is told.
static_assert(kCreditWindow - kAnnounceCredit - kEagerBytes > kCreditBack + kHoldFrom);

struct FrameHead {
  FrameKind kind{};
  uint32_t length = 0;  // of the payload
  Channel channel = 0;
  uint64_t id = 0;    // of an announced message, unique for its sender and connection
  uint64_t size = 0;  // or offset

  bool operator==(const FrameHead&) const = default;
};

// The credit that a message or an announcement of this head costs.
inline size_t credit_cost(const FrameHead& head) {
  return 64 + (head.kind == FrameKind::message ? head.length : 0);
}

// Little-endian: u8 kind, 3 zero bytes, u32 length, u64 channel, u64 id, u64 size.
void encode(const FrameHead& head, std::span<char, kFrameHead> bytes);
// Throws Error(net, failure) for bytes that are no head, or one with a payload of a length that its
// kind cannot have.
FrameHead decode(std::span<const char, kFrameHead> bytes);

}  // namespace troika::net
