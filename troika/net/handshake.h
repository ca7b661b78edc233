// The handshake in which both ends of a connection prove that they hold the run's secret, before
// either trusts any other byte. It consists of functions on bytes, without sockets.
//
//   1. client to server: kClientMagic, an ephemeral X25519 key, a tag
//   2. server to client: kServerMagic, an ephemeral X25519 key, a tag
//   3. both ways: records (record.h) under keys of this session
//
// A tag is an HMAC-SHA-512-256 (RFC 4868's construction, libsodium's crypto_auth) over the
// direction and all preceding bytes, under a key derived from the secret and the listener's name.
// The ephemeral keys are random and serve as nonces. The session keys are derived from the key
// exchange (crypto_kx), the secret and both messages. Consequences:
// - A message cannot be reflected, nor relayed to another listener.
// - A replayed first message is refused: the listener remembers its ephemeral key. Other listeners
//   reject it too. The first record cannot be produced without the ephemeral secrets.
// - A recorded session cannot be decrypted when the secret leaks later (forward secrecy).
// - There is a single version, named by the magic, so nothing can be downgraded.
// A wrong tag gets no answer. All holders of the secret can impersonate each other.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "troika/net/record.h"
#include "troika/net/secret.h"

namespace troika::net {

// Must change with every change of the handshake or of records.
inline constexpr std::string_view kClientMagic = "TROIKA1C";
inline constexpr std::string_view kServerMagic = "TROIKA1S";
inline constexpr size_t kKeySize = 32;
// The size of both handshake messages.
inline constexpr size_t kHandshakeSize = 8 + kKeySize + 32;

// Whether `bytes` is a prefix of the magic, or begins with it.
bool may_begin(std::string_view bytes, std::string_view magic);

// Used for one connection.
class ClientHandshake {
 public:
  // `listener` names the listener to reach. The server must use the same name.
  ClientHandshake(const Secret& secret, const std::string& listener);

  const std::string& first_message() const { return first_; }
  // Returns nullopt unless `answer` has kHandshakeSize bytes and proves that the server holds the
  // secret.
  std::optional<SessionKeys> finish(std::string_view answer) const;

 private:
  const Secret key_;
  const Secret ephemeral_;
  std::string first_;
};

// Used for all connections of one listener. Remembers 32 bytes of each first message with a valid
// tag.
class ServerHandshake {
 public:
  ServerHandshake(const Secret& secret, const std::string& listener);

  struct Answer {
    std::string message;
    SessionKeys keys;
  };
  // Returns nullopt unless `first` has kHandshakeSize bytes, proves that the client holds the
  // secret, and is new. The client is authenticated only when its first record opens: a relayed
  // message gets no further than this.
  std::optional<Answer> answer(std::string_view first);

 private:
  const Secret key_;
  std::set<std::string> seen_;  // ephemeral keys
};

}  // namespace troika::net
