#include "troika/net/record.h"

#include <sodium.h>

#include <algorithm>
#include <array>

#include "troika/base/error.h"
#include "troika/net/bytes.h"

namespace troika::net {

namespace {

constexpr size_t kLength = 4;
constexpr size_t kTag = crypto_aead_chacha20poly1305_ietf_ABYTES;
static_assert(kRecordOverhead == kLength + kTag);
static_assert(Secret::kSize == crypto_aead_chacha20poly1305_ietf_KEYBYTES);

using Nonce = std::array<unsigned char, crypto_aead_chacha20poly1305_ietf_NPUBBYTES>;

Nonce nonce_of(uint64_t count) {
  Nonce nonce{};
  for (size_t i = 0; i < 8; ++i) nonce[4 + i] = static_cast<unsigned char>(count >> (8 * i));
  return nonce;
}

}  // namespace

std::string Sealer::seal(std::string_view bytes) {
  std::string records;
  records.reserve(bytes.size() + kRecordOverhead * (1 + bytes.size() / kMaxRecordText));
  while (!bytes.empty()) {
    const auto text = bytes.substr(0, kMaxRecordText);
    bytes.remove_prefix(text.size());
    const size_t start = records.size();
    const size_t size = text.size() + kTag;
    records.resize(start + kLength + size);
    char* const record = records.data() + start;
    for (size_t i = 0; i < kLength; ++i) record[i] = static_cast<char>(size >> (8 * i));
    const Nonce nonce = nonce_of(count_++);
    ::crypto_aead_chacha20poly1305_ietf_encrypt(raw(record + kLength), nullptr, raw(text.data()),
                                                text.size(), raw(record), kLength, nullptr,
                                                nonce.data(), key_.data());
  }
  return records;
}

void Opener::open(std::string_view bytes, std::string& text) {
  const auto broken = [this] {
    broken_ = true;
    rest_ = {};
    return Error("net", ErrorKind::failure,
                 {.what = "broken record", .got = "bytes that the other end did not send"});
  };
  if (broken_) throw broken();
  rest_.append(bytes);
  size_t start = 0;
  while (rest_.size() - start >= kLength) {
    const char* const record = rest_.data() + start;
    size_t size = 0;
    for (size_t i = 0; i < kLength; ++i) size |= size_t{raw(record)[i]} << (8 * i);
    if (size <= kTag || size > kMaxRecordText + kTag) throw broken();
    if (rest_.size() - start < kLength + size) break;
    const Nonce nonce = nonce_of(count_);
    const size_t end = text.size();
    text.resize(end + size - kTag);
    if (::crypto_aead_chacha20poly1305_ietf_decrypt(raw(text.data() + end), nullptr, nullptr,
                                                    raw(record + kLength), size, raw(record),
                                                    kLength, nonce.data(), key_.data()) != 0) {
      text.resize(end);
      throw broken();
    }
    ++count_;
    start += kLength + size;
  }
  rest_.erase(0, start);
}

}  // namespace troika::net
