#include "troika/net/frame_cipher.h"

#include <sodium.h>

#include <string>
#include <vector>

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/net/bytes.h"

namespace troika::net {

namespace {

static_assert(kFrameTag == crypto_aead_chacha20poly1305_ietf_ABYTES);

void require_authentic(int code) {
  if (code == 0) return;
  throw Error("net", ErrorKind::failure,
              {.what = "broken frame", .got = "bytes that the other end did not send"});
}

}  // namespace

std::string_view name(Protection protection) {
  switch (protection) {
    case Protection::none:
      return "none";
    case Protection::authenticated:
      return "authenticated";
    case Protection::encrypted:
      break;
  }
  return "encrypted";
}

Protection protection_from(std::string_view word) {
  std::vector<std::string> names;
  for (const auto protection :
       {Protection::none, Protection::authenticated, Protection::encrypted}) {
    if (name(protection) == word) return protection;
    names.emplace_back(name(protection));
  }
  throw Error("net", ErrorKind::usage,
              {.what = "unknown protection",
               .got = std::string(word),
               .hint = "did you mean " + nearest(word, names) + "?"});
}

FrameCipher::Nonce FrameCipher::next_nonce() {
  Nonce nonce{};
  for (size_t i = 0; i < 8; ++i) nonce[4 + i] = static_cast<unsigned char>(count_ >> (8 * i));
  ++count_;
  return nonce;
}

void FrameCipher::seal_head(std::span<const char, kFrameHead> head,
                            std::span<char, kSealedHead> sealed) {
  const Nonce nonce = next_nonce();
  ::crypto_aead_chacha20poly1305_ietf_encrypt(raw(sealed.data()), nullptr, raw(head.data()),
                                              head.size(), nullptr, 0, nullptr, nonce.data(),
                                              key_.data());
}

void FrameCipher::seal(std::string_view payload, char* sealed, std::span<char, kFrameTag> tag) {
  const Nonce nonce = next_nonce();
  ::crypto_aead_chacha20poly1305_ietf_encrypt_detached(raw(sealed), raw(tag.data()), nullptr,
                                                       raw(payload.data()), payload.size(), nullptr,
                                                       0, nullptr, nonce.data(), key_.data());
}

void FrameCipher::sign(std::string_view payload, std::span<char, kFrameTag> tag) {
  const Nonce nonce = next_nonce();
  unsigned char text = 0;  // an empty text
  ::crypto_aead_chacha20poly1305_ietf_encrypt_detached(&text, raw(tag.data()), nullptr, &text, 0,
                                                       raw(payload.data()), payload.size(), nullptr,
                                                       nonce.data(), key_.data());
}

void FrameCipher::open_head(std::span<const char, kSealedHead> sealed,
                            std::span<char, kFrameHead> head) {
  const Nonce nonce = next_nonce();
  require_authentic(::crypto_aead_chacha20poly1305_ietf_decrypt(
      raw(head.data()), nullptr, nullptr, raw(sealed.data()), sealed.size(), nullptr, 0,
      nonce.data(), key_.data()));
}

void FrameCipher::open(std::span<char> payload, std::span<const char, kFrameTag> tag) {
  const Nonce nonce = next_nonce();
  require_authentic(::crypto_aead_chacha20poly1305_ietf_decrypt_detached(
      raw(payload.data()), nullptr, raw(payload.data()), payload.size(), raw(tag.data()), nullptr,
      0, nonce.data(), key_.data()));
}

void FrameCipher::verify(std::string_view payload, std::span<const char, kFrameTag> tag) {
  const Nonce nonce = next_nonce();
  unsigned char text = 0;  // an empty text
  require_authentic(::crypto_aead_chacha20poly1305_ietf_decrypt_detached(
      &text, nullptr, &text, 0, raw(tag.data()), raw(payload.data()), payload.size(), nonce.data(),
      key_.data()));
}

}  // namespace troika::net
