// Peers of a swarm are known by their public keys.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace troika::swarm {

// A pair of Ed25519 keys (RFC 8032). The secret key is wiped from memory on destruction.
class Identity {
 public:
  static constexpr size_t kSeed = 32;

  // From the system's random number generator.
  static Identity random();
  // The same seed gives the same keys. The seed is as secret as the key.
  static Identity from_seed(const std::array<uint8_t, kSeed>& seed);

  Identity(const Identity&) = default;
  Identity& operator=(const Identity&) = default;
  ~Identity();

  // The public key: 64 hexadecimal digits in lower case. Also the name of the peer's endpoint.
  const std::string& name() const { return name_; }
  // Returns the signature of a text: 128 hexadecimal digits.
  std::string sign(std::string_view text) const;

 private:
  Identity() = default;

  std::string name_;
  std::array<unsigned char, 64> secret_{};
};

// Whether `signature` is the signature of a text by the peer of this name. False for any other
// bytes.
bool is_signed_by(const std::string& name, std::string_view text, const std::string& signature);

// Returns the BLAKE2b hash (RFC 7693) of a text, of 32 bytes, as 64 hexadecimal digits.
std::string digest_of(std::string_view text);

}  // namespace troika::swarm
