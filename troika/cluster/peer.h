// One connection as rank 0's server sees it. Nonblocking; for a single thread.
#pragma once

#include <string>

#include "troika/cluster/descriptor.h"
#include "troika/cluster/outbox.h"
#include "troika/cluster/wire.h"

namespace troika::cluster {

struct Peer {
  explicit Peer(Descriptor connection);

  void send(const Frame& frame) { out.add(encode(frame)); }
  // The last frame it gets: what it says from now on counts no more.
  void refuse(const Refusal& why);
  // Sends what the socket takes; after a refusal, closes our half once all is out.
  void flush();
  // Reads what is there. An end, also one for bytes that are no greeting, sets `ended`.
  void read();
  // Whether frames may follow.
  bool talks() const { return greeted_ && !closing && !ended; }
  bool admitted() const { return rank >= 0; }

  Descriptor socket;
  Decoder in;
  Outbox out;
  int rank = -1;         // once admitted
  bool left = false;     // said so; its end is no loss
  bool closing = false;  // nothing it says counts any more
  bool ended = false;
  std::string reason;  // why it ended

 private:
  bool greeted_ = false;
  bool shut_ = false;  // we have sent our last byte
};

}  // namespace troika::cluster
