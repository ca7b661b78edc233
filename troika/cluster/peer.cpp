#include "troika/cluster/peer.h"

#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "troika/cluster/socket.h"

namespace troika::cluster {

Peer::Peer(Descriptor connection) : socket(std::move(connection)), out(kServerGreeting) {
  tune(socket.get());
}

void Peer::refuse(const Refusal& why) {
  send({Message::refused, 0, "", to_json(why)});
  closing = true;
}

void Peer::flush() {
  while (!out.empty() && !ended) {
    const ssize_t sent =
        ::send(socket.get(), out.data() + out_sent_, out.size() - out_sent_, MSG_NOSIGNAL);
    if (sent >= 0) {
      out_sent_ += static_cast<size_t>(sent);
      if (out_sent_ < out.size()) continue;
      out.clear();
      out_sent_ = 0;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return;
    } else if (errno != EINTR) {
      ended = true;
      reason = system_reason(errno);
    }
  }
  if (closing && !ended && !std::exchange(shut_, true)) {
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
