#include "troika/cluster/peer.h"

#include <sys/socket.h>

#include <utility>

#include "troika/cluster/socket.h"

namespace troika::cluster {

Peer::Peer(Descriptor connection) : socket(std::move(connection)) {
  out.add(std::string(kServerGreeting));
  tune(socket.get());
}

void Peer::refuse(const Refusal& why) {
  send({Message::refused, 0, "", to_json(why)});
  closing = true;
}

void Peer::flush() {
  if (ended) return;
  ended = !out.flush(socket.get(), reason);
  if (closing && !ended && out.empty() && !std::exchange(shut_, true)) {
    // Half closed: a full close could destroy the refusal on its way.
    ::shutdown(socket.get(), SHUT_WR);
  }
}

void Peer::read() {
  std::string bytes, why;
  if (!receive(socket.get(), bytes, why)) {
    ended = true;
    reason = why;
  }
  if (closing) return;
  in.feed(bytes);
  if (greeted_) return;
  const auto greeting = in.raw(kClientGreeting.size());
  greeted_ = greeting.has_value();
  // A stranger, say a port scanner.
  if (greeted_ && *greeting != kClientGreeting) ended = true;
}

}  // namespace troika::cluster
