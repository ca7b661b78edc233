// The client's side of a handshake over a socket.
#pragma once

#include <optional>
#include <string>

#include "troika/base/clock.h"
#include "troika/net/handshake.h"

namespace troika::net {

enum class Proof {
  given,    // the server holds the secret, and so do we
  refused,  // the connection ended without an answer: the secrets differ, or the server is gone
  wrong,    // it answered as a server does, but does not hold the secret
  foreign,  // another program answered
  silent,   // nobody answered before the deadline
};

struct Greeting {
  Proof proof{};
  std::optional<SessionKeys> keys;  // when given
  std::string detail;               // how the connection ended, or what another program said
};

// Sends the first message and waits for the answer. Blocks until the deadline at the latest.
// `socket` is nonblocking and new.
Greeting greet(int socket, const Secret& secret, const std::string& listener, Deadline deadline);

}  // namespace troika::net
