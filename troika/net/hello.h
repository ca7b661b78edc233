// The first records (record.h) of a connection between endpoints: the client's name and parameters,
// and the server's verdict.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "troika/net/frame_cipher.h"
#include "troika/net/handshake.h"

namespace troika::net {

// The maximum number of data sockets of a connection. With several, an additional socket carries
// all other frames.
inline constexpr int kMostStreams = 16;
inline constexpr size_t kMostName = 255;  // bytes

struct Hello {
  std::string name;      // of the connecting endpoint
  uint64_t attempt = 0;  // random; the same for all sockets of one connection
  Protection protection{};
  int socket = 0;   // index of this socket
  int sockets = 1;  // number of sockets of the connection
};
std::string encode(const Hello& hello);
// Returns nullopt for invalid bytes.
std::optional<Hello> decode_hello(std::string_view bytes);

enum class Verdict : uint8_t {
  welcome,  // frames follow
  busy,     // another connection under that name exists or is being made: retry later
  refused,  // for the given reason; retrying cannot help
};
struct HelloReply {
  Verdict verdict{};
  std::string reason = {};
};
std::string encode(const HelloReply& reply);
std::optional<HelloReply> decode_reply(std::string_view bytes);

// Returns the listener's name for the handshake (handshake.h).
std::string listener_name(const std::string& endpoint);
// Derives the keys for frames from the keys of the handshake.
SessionKeys frame_keys(const SessionKeys& keys);

}  // namespace troika::net
