// How two ends of a connection prove to each other that they hold the run's secret, before either
// believes another byte. It is made of functions of bytes, without sockets.
//
//   1. client to server: kClientMagic, an ephemeral X25519 key, a tag
//   2. server to client: kServerMagic, an ephemeral X25519 key, a tag
//   3. both ways: records (record.h) under keys of this session
//
// A tag is HMAC-SHA-512-256 (RFC 4868's construction, libsodium's crypto_auth) over the direction
// and all bytes so far, under a key derived from the secret and the listener's name. The ephemeral
// keys are random and serve as nonces. The session keys come from the key exchange (crypto_kx), the
// secret and both messages, so that
// - a message cannot be reflected, nor relayed to another listener;
// - a recorded first message is refused, as the listener has seen its ephemeral key, and earns
//   nothing at another one; without the ephemeral secrets nobody can make the first record;
// - who records a session and learns the secret later cannot read it (forward secrecy);
// - there is one version, which the magic names: nothing can be negotiated down.
// Nobody answers a wrong tag. Those who hold the secret can pose as each other.
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

// They change with every change of the handshake or of records.
inline constexpr std::string_view kClientMagic = "TROIKA1C";
inline constexpr std::string_view kServerMagic = "TROIKA1S";
inline constexpr size_t kKeySize = 32;
// The size of either handshake message.
inline constexpr size_t kHandshakeSize = 8 + kKeySize + 32;

// Whether these first bytes can still become a message that begins with the magic.
bool may_begin(std::string_view bytes, std::string_view magic);

// For one connection.
class ClientHandshake {
 public:
  // `listener` names what the client wants to reach; the server names itself the same way.
  ClientHandshake(const Secret& secret, const std::string& listener);

  const std::string& first_message() const { return first_; }
  // Nothing unless kHandshakeSize bytes prove that the server holds the secret.
  std::optional<SessionKeys> finish(std::string_view answer) const;

 private:
  const Secret key_;
  const Secret ephemeral_;
  std::string first_;
};

// For all connections of one listener. Remembers 32 bytes of every first message with a right tag.
class ServerHandshake {
 public:
  ServerHandshake(const Secret& secret, const std::string& listener);

  struct Answer {
    std::string message;
    SessionKeys keys;
  };
  // Nothing unless kHandshakeSize bytes prove that the client holds the secret, and are new. The
  // proof is complete with the first record that opens: whoever relays messages gets no further.
  std::optional<Answer> answer(std::string_view first);

 private:
  const Secret key_;
  std::set<std::string> seen_;  // ephemeral keys
};

}  // namespace troika::net
