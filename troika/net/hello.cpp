#include "troika/net/hello.h"

#include "troika/net/bytes.h"

namespace troika::net {

namespace {

constexpr char kVersion = 1;
constexpr size_t kHelloHead = 4 + 8;
constexpr size_t kReplyHead = 2;

}  // namespace

std::string encode(const Hello& hello) {
  std::string bytes{kVersion, static_cast<char>(hello.protection), static_cast<char>(hello.socket),
                    static_cast<char>(hello.sockets)};
  bytes.resize(kHelloHead);
  put(bytes.data() + 4, hello.attempt);
  return bytes + hello.name;
}

std::optional<Hello> decode_hello(std::string_view bytes) {
  if (bytes.size() <= kHelloHead || bytes.size() > kHelloHead + kMostName) return std::nullopt;
  const Hello hello{std::string(bytes.substr(kHelloHead)), take<uint64_t>(bytes.data() + 4),
                    static_cast<Protection>(bytes[1]), bytes[2], bytes[3]};
  const bool is_good = bytes[0] == kVersion && hello.protection <= Protection::encrypted &&
                       hello.sockets >= 1 && hello.sockets <= kMostStreams + 1 &&
                       hello.socket >= 0 && hello.socket < hello.sockets;
  return is_good ? std::optional(hello) : std::nullopt;
}

std::string encode(const HelloReply& reply) {
  std::string bytes{kVersion, static_cast<char>(reply.verdict)};
  return bytes + reply.reason;
}

std::optional<HelloReply> decode_reply(std::string_view bytes) {
  if (bytes.size() < kReplyHead || bytes[0] != kVersion) return std::nullopt;
  const HelloReply reply{static_cast<Verdict>(bytes[1]), std::string(bytes.substr(kReplyHead))};
  return reply.verdict <= Verdict::refused ? std::optional(reply) : std::nullopt;
}

std::string listener_name(const std::string& endpoint) {
  return "endpoint " + endpoint;
}

SessionKeys frame_keys(const SessionKeys& keys) {
  return {keys.send.derive("frames", ""), keys.receive.derive("frames", "")};
}

}  // namespace troika::net
