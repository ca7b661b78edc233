#include "troika/net/frame.h"

#include "troika/base/error.h"
#include "troika/net/bytes.h"

namespace troika::net {

namespace {

bool can_be(const FrameHead& head) {
  switch (head.kind) {
    case FrameKind::message:
      return head.length <= kEagerBytes;
    case FrameKind::data:
      return head.length > 0 && head.length <= kMaxFramePayload;
    case FrameKind::announce:
      return head.length == 0 && head.size > 0;
    default:
      return head.length == 0;
  }
}

}  // namespace

void encode(const FrameHead& head, std::span<char, kFrameHead> bytes) {
  char* const to = bytes.data();
  put(to, static_cast<uint32_t>(head.kind));
  put(to + 4, head.length);
  put(to + 8, head.channel);
  put(to + 16, head.id);
  put(to + 24, head.size);
}

FrameHead decode(std::span<const char, kFrameHead> bytes) {
  const char* const from = bytes.data();
  const auto kind = take<uint32_t>(from);
  const FrameHead head{static_cast<FrameKind>(kind), take<uint32_t>(from + 4),
                       take<uint64_t>(from + 8), take<uint64_t>(from + 16),
                       take<uint64_t>(from + 24)};
  if (kind > static_cast<uint32_t>(kLastFrameKind) || !can_be(head)) {
    throw Error("net", ErrorKind::failure,
                {.what = "broken frame", .got = "bytes that no endpoint sends"});
  }
  return head;
}

}  // namespace troika::net
