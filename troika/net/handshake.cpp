#include "troika/net/handshake.h"

#include <sodium.h>

#include <algorithm>

namespace troika::net {

namespace {

static_assert(kKeySize == crypto_kx_PUBLICKEYBYTES && kKeySize == crypto_kx_SECRETKEYBYTES);
static_assert(kKeySize == crypto_kx_SESSIONKEYBYTES && kKeySize == Secret::kSize);
static_assert(kKeySize == crypto_auth_KEYBYTES && crypto_auth_BYTES == 32);

using Bytes = std::array<unsigned char, kKeySize>;

const unsigned char* raw(std::string_view bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

// Returns the X25519 public key for the private key `ephemeral`.
std::string public_half(const Secret& ephemeral) {
  std::string half(kKeySize, '\0');
  ::crypto_scalarmult_base(reinterpret_cast<unsigned char*>(half.data()), ephemeral.data());
  return half;
}

std::string tag(const Secret& key, std::string_view direction, std::string_view text) {
  const std::string message = std::string(direction) + std::string(text);
  std::string result(crypto_auth_BYTES, '\0');
  ::crypto_auth(reinterpret_cast<unsigned char*>(result.data()), raw(message), message.size(),
                key.data());
  return result;
}

// Whether `message` begins with the magic and ends with the correct tag over `before` and its body.
bool proves(std::string_view message, std::string_view magic, const Secret& key,
            std::string_view direction, std::string_view before) {
  if (message.size() != kHandshakeSize || !message.starts_with(magic)) return false;
  const auto body = message.substr(0, kHandshakeSize - crypto_auth_BYTES);
  const std::string expected = tag(key, direction, std::string(before) + std::string(body));
  return ::sodium_memcmp(expected.data(), message.data() + body.size(), crypto_auth_BYTES) == 0;
}

std::string_view public_key(std::string_view message) {
  return message.substr(kServerMagic.size(), kKeySize);
}

// Binds the exchanged key to the secret and to both messages.
Secret session_key(const Bytes& exchanged, const Secret& key, std::string_view first,
                   std::string_view answer) {
  const std::string transcript = std::string(first) + std::string(answer);
  std::string both(reinterpret_cast<const char*>(exchanged.data()), exchanged.size());
  const Secret result = key.derive("session " + both, transcript);
  ::sodium_memzero(both.data(), both.size());
  return result;
}

// `exchange` is the crypto_kx function of this end.
template <typename Exchange>
std::optional<SessionKeys> session_keys(const Exchange& exchange, const Secret& ephemeral,
                                        std::string_view other, const Secret& key,
                                        std::string_view first, std::string_view answer) {
  Bytes receive{}, send{};
  const std::string own = public_half(ephemeral);
  // Refuses keys of small order: their result does not depend on our key.
  if (exchange(receive.data(), send.data(), raw(own), ephemeral.data(), raw(other)) != 0) {
    return std::nullopt;
  }
  SessionKeys keys{session_key(send, key, first, answer), session_key(receive, key, first, answer)};
  ::sodium_memzero(receive.data(), receive.size());
  ::sodium_memzero(send.data(), send.size());
  return keys;
}

}  // namespace

bool may_begin(std::string_view bytes, std::string_view magic) {
  const size_t size = std::min(bytes.size(), magic.size());
  return bytes.substr(0, size) == magic.substr(0, size);
}

ClientHandshake::ClientHandshake(const Secret& secret, const std::string& listener)
    : key_(secret.derive("handshake", listener)), ephemeral_(Secret::random()) {
  first_ = std::string(kClientMagic) + public_half(ephemeral_);
  first_ += tag(key_, "1", first_);
}

std::optional<SessionKeys> ClientHandshake::finish(std::string_view answer) const {
  if (!proves(answer, kServerMagic, key_, "2", first_)) return std::nullopt;
  return session_keys(::crypto_kx_client_session_keys, ephemeral_, public_key(answer), key_, first_,
                      answer);
}

ServerHandshake::ServerHandshake(const Secret& secret, const std::string& listener)
    : key_(secret.derive("handshake", listener)) {}

std::optional<ServerHandshake::Answer> ServerHandshake::answer(std::string_view first) {
  if (!proves(first, kClientMagic, key_, "1", "")) return std::nullopt;
  if (!seen_.emplace(public_key(first)).second) return std::nullopt;
  const Secret ephemeral = Secret::random();
  std::string message = std::string(kServerMagic) + public_half(ephemeral);
  message += tag(key_, "2", std::string(first) + message);
  auto keys = session_keys(::crypto_kx_server_session_keys, ephemeral, public_key(first), key_,
                           first, message);
  if (!keys) return std::nullopt;
  return Answer{std::move(message), *keys};
}

}  // namespace troika::net
