// The first records (record.h) of a connection between endpoints: who connects, and whether it may.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "troika/net/frame_cipher.h"
#include "troika/net/handshake.h"

namespace troika::net {

// Data sockets of a connection, at most; one more carries all else.
inline constexpr int kMostStreams = 16;
inline constexpr size_t kMostName = 255;  // bytes

struct Hello {
  std::string name;      // of the endpoint that connects
  uint64_t attempt = 0;  // random; the same for all sockets that are to be one connection
  Protection protection{};
  int socket = 0;   // which of the connection's
  int sockets = 1;  // of the connection
};
std::string encode(const Hello& hello);
// Nothing for bytes that no endpoint sends.
std::optional<Hello> decode_hello(std::string_view bytes);

enum class Verdict : uint8_t {
  welcome,  // frames follow
  busy,     // there is another connection under that name, or about to be: try again later
  refused,  // for the reason given; no use to try again
};
struct HelloReply {
  Verdict verdict{};
  std::string reason = {};
};
std::string encode(const HelloReply& reply);
std::optional<HelloReply> decode_reply(std::string_view bytes);

// The name that a listener has in the handshake (handshake.h).
std::string listener_name(const std::string& endpoint);
// Derives the keys of a session's frames from those of its handshake.
SessionKeys frame_keys(const SessionKeys& keys);

}  // namespace troika::net
