// Protection of frames under the keys of a session (ChaCha20-Poly1305, RFC 8439).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "troika/net/frame.h"
#include "troika/net/record.h"

namespace troika::net {

// How frames are protected. The handshake before them is the same for all.
enum class Protection : uint8_t {
  none,           // who is on the path can read and change frames; others can do neither
  authenticated,  // who is on the path can read payloads, and change nothing
  encrypted,      // who is on the path can read and change nothing
};
std::string_view name(Protection protection);
// Throws Error(net, usage) for another name.
Protection protection_from(std::string_view name);

// An authenticator of a head or a payload.
inline constexpr size_t kFrameTag = 16;
// The size of a protected head.
inline constexpr size_t kSealedHead = kFrameHead + kFrameTag;

// One direction of one connection. Heads are encrypted. A payload is encrypted, or stays as it is
// and is the additional data of an empty text. A counter of heads and payloads is the nonce, so
// that none can be dropped, repeated, reordered or changed. For a single thread.
class FrameCipher {
 public:
  explicit FrameCipher(const Secret& key) : key_(key) {}

  void seal_head(std::span<const char, kFrameHead> head, std::span<char, kSealedHead> sealed);
  // Encrypts into `sealed`, which has room for the payload, and makes its tag.
  void seal(std::string_view payload, char* sealed, std::span<char, kFrameTag> tag);
  // The tag of a payload that is not encrypted.
  void sign(std::string_view payload, std::span<char, kFrameTag> tag);

  // The same in the other direction; throw Error(net, failure) for what the other end did not send
  // now.
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
