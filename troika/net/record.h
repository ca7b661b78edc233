// Records: pieces of a byte stream, each encrypted and authenticated with session keys
// (ChaCha20-Poly1305, RFC 8439).
//
// A record is a little-endian u32 with the length of the rest, the ciphertext and the tag. The
// length is authenticated too. The nonce counts records, so that dropping, repeating, reordering or
// changing one is detected. The end of the stream is not authenticated: an attacker who can forge
// TCP segments can end a connection, which higher layers treat as a lost connection.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "troika/net/secret.h"

namespace troika::net {

// Longer texts become several records.
inline constexpr size_t kMaxRecordText = size_t{64} << 10;
inline constexpr size_t kRecordOverhead = 4 + 16;

// The keys of one end of a session.
struct SessionKeys {
  Secret send, receive;
};

class Sealer {
 public:
  explicit Sealer(const Secret& key) : key_(key) {}
  // Returns the records for these bytes. They must be sent in this order.
  std::string seal(std::string_view bytes);

 private:
  Secret key_;
  uint64_t count_ = 0;
};

class Opener {
 public:
  explicit Opener(const Secret& key) : key_(key) {}
  // Appends the content of all records that `bytes` completes to `text`. Keeps the rest, at most
  // one record, for the next call. Throws Error(net, failure) for a record that the other end did
  // not send at this position, and on every later call.
  void open(std::string_view bytes, std::string& text);

 private:
  Secret key_;
  uint64_t count_ = 0;
  std::string rest_;
  bool broken_ = false;
};

// One end of a session.
struct Session {
  explicit Session(const SessionKeys& keys) : sealer(keys.send), opener(keys.receive) {}

  Sealer sealer;
  Opener opener;
};

}  // namespace troika::net
