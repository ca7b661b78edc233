// Records: pieces of a stream of bytes, each encrypted and authenticated under the keys of a
// session (ChaCha20-Poly1305, RFC 8439).
//
// A record is u32 little-endian length of the rest, ciphertext, tag. The length is authenticated
// with it, and a counter of records is the nonce: none can be dropped, repeated, reordered or
// changed. The end of the stream is not authenticated: who can forge TCP segments can end a
// connection, which the rooms above take for a loss.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "troika/net/secret.h"

namespace troika::net {

// Longer streams become several records.
inline constexpr size_t kMaxRecordText = size_t{64} << 10;
inline constexpr size_t kRecordOverhead = 4 + 16;

// The keys of one end of a session.
struct SessionKeys {
  Secret send, receive;
};

class Sealer {
 public:
  explicit Sealer(const Secret& key) : key_(key) {}
  // The records of these bytes, to be sent in this order.
  std::string seal(std::string_view bytes);

 private:
  Secret key_;
  uint64_t count_ = 0;
};

class Opener {
 public:
  explicit Opener(const Secret& key) : key_(key) {}
  // Appends what is in the records that are whole with these bytes to `text`, and keeps the rest,
  // at most one record. Throws Error(net, failure) for a record that the other end did not send
  // now, and from then on.
  void open(std::string_view bytes, std::string& text);
  // Whether any record was opened.
  bool has_opened() const { return count_ > 0; }

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
