#include "troika/swarm/identity.h"

#include <sodium.h>

#include <vector>

#include "troika/base/error.h"
#include "troika/net/bytes.h"

namespace troika::swarm {

namespace {

using net::raw;

void use_sodium() {
  static const int started = ::sodium_init();
  TROIKA_CHECK(started >= 0, "libsodium cannot start");
}

std::string hex(const unsigned char* bytes, size_t size) {
  std::string text(2 * size + 1, '\0');
  ::sodium_bin2hex(text.data(), text.size(), bytes, size);
  text.pop_back();
  return text;
}

// Whether `text` is exactly the digits of an array.
template <size_t size>
bool from_hex(std::string_view text, std::array<unsigned char, size>& bytes) {
  size_t written = 0;
  return text.size() == 2 * size &&
         ::sodium_hex2bin(bytes.data(), size, text.data(), text.size(), nullptr, &written,
                          nullptr) == 0 &&
         written == size;
}

}  // namespace

Identity Identity::random() {
  use_sodium();
  std::array<uint8_t, kSeed> seed{};
  ::randombytes_buf(seed.data(), seed.size());
  auto identity = from_seed(seed);
  ::sodium_memzero(seed.data(), seed.size());
  return identity;
}

Identity Identity::from_seed(const std::array<uint8_t, kSeed>& seed) {
  use_sodium();
  Identity identity;
  std::array<unsigned char, crypto_sign_PUBLICKEYBYTES> key{};
  static_assert(crypto_sign_SECRETKEYBYTES == 64);
  ::crypto_sign_seed_keypair(key.data(), identity.secret_.data(), seed.data());
  identity.name_ = hex(key.data(), key.size());
  return identity;
}

Identity::~Identity() {
  ::sodium_memzero(secret_.data(), secret_.size());
}

std::string Identity::sign(std::string_view text) const {
  std::array<unsigned char, crypto_sign_BYTES> signature{};
  ::crypto_sign_detached(signature.data(), nullptr, raw(text.data()), text.size(), secret_.data());
  return hex(signature.data(), signature.size());
}

bool is_signed_by(const std::string& name, std::string_view text, const std::string& signature) {
  use_sodium();
  std::array<unsigned char, crypto_sign_PUBLICKEYBYTES> key{};
  std::array<unsigned char, crypto_sign_BYTES> bytes{};
  return from_hex(name, key) && from_hex(signature, bytes) &&
         ::crypto_sign_verify_detached(bytes.data(), raw(text.data()), text.size(), key.data()) ==
             0;
}

std::string digest_of(std::string_view text) {
  use_sodium();
  std::array<unsigned char, 32> digest{};
  ::crypto_generichash(digest.data(), digest.size(), raw(text.data()), text.size(), nullptr, 0);
  return hex(digest.data(), digest.size());
}

}  // namespace troika::swarm
