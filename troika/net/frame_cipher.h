// Encryption and authentication of frames with session keys (ChaCha20-Poly1305, RFC 8439).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "troika/net/frame.h"
#include "troika/net/record.h"

namespace troika::net {

// How frames are protected against an attacker on the network path. The handshake is the same for
// all.
enum class Protection : uint8_t {
  none,  // an attacker on the path can read and change frames; other attackers can do neither
  authenticated,  // an attacker on the path can read payloads but change nothing
  encrypted,      // an attacker on the path can neither read nor change anything
};
std::string_view name(Protection protection);
// Throws Error(net, usage) for an unknown name.
Protection protection_from(std::string_view name);

// The size of an authentication tag; heads and payloads have one each.
inline constexpr size_t kFrameTag = 16;
// The size of an encrypted head with its tag.
inline constexpr size_t kSealedHead = kFrameHead + kFrameTag;

// Protects one direction of one connection. Encrypts heads. Encrypts payloads or authenticates them
// as additional data. The nonce counts heads and payloads, so that dropping, repeating, reordering
// or changing one is detected. Not thread-safe.
class FrameCipher {
 public:
  explicit FrameCipher(const Secret& key) : key_(key) {}

  void seal_head(std::span<const char, kFrameHead> head, std::span<char, kSealedHead> sealed);
  // Encrypts the payload into `sealed`, which must have room for it, and writes its tag.
  void seal(std::string_view payload, char* sealed, std::span<char, kFrameTag> tag);
  // Writes the tag of an unencrypted payload.
  void sign(std::string_view payload, std::span<char, kFrameTag> tag);

  // The inverse functions. They throw Error(net, failure) unless the bytes are what the other end
  // sent at this position.
  void open_head(std::span<const char, kSealedHead> sealed, std::span<char, kFrameHead> head);
  // Decrypts in place.
  void open(std::span<char> payload, std::span<const char, kFrameTag> tag);
  void verify(std::string_view payload, std::span<const char, kFrameTag> tag);

 private:
  using Nonce = std::array<unsigned char, 12>;
  Nonce next_nonce();

  Secret key_;
  uint64_t count_ = 0;
};

}  // namespace troika::net
