// The client's side of a connection between endpoints, in one attempt.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "troika/base/clock.h"
#include "troika/net/descriptor.h"
#include "troika/net/hello.h"

namespace troika::net {

struct Address {
  std::string host;  // a name, or a numeric address of IPv4 or IPv6
  int port = 0;
};

// Why an attempt has failed.
struct DialFailure {
  enum class Kind : uint8_t {
    unreachable,  // nobody listens there, or who listens ends
    refused,      // the connection ended without an answer: the secrets differ, or it ends
    wrong,        // it answered as an endpoint does, but does not hold the secret
    foreign,      // another program answered
    silent,       // nobody answered in time
    busy,         // there is another connection under this endpoint's name, or about to be
  };
  Kind kind{};
  std::string detail = {};  // the system's reason, or what another program said
};
// For an error.
std::string describe(const DialFailure& failure);

// The handshake: sends the first message and waits for the answer. Blocks. `socket` is nonblocking
// and new.
std::variant<SessionKeys, DialFailure> greet(int socket, const Secret& secret,
                                             const std::string& listener, Deadline deadline);

struct Dialed {
  Descriptor socket;  // nonblocking
  SessionKeys keys;   // of the frames
};
using DialResult = std::variant<Dialed, DialFailure>;

struct DialPatience {
  Deadline deadline;           // of all
  Milliseconds connect{5000};  // until there is a connection
  Milliseconds answer{5000};   // from then until the peer has answered
};

// Connects one socket. Blocks. Throws Error(net, usage) when the peer refused.
DialResult dial(const std::string& peer, const Address& address, const Secret& secret,
                const Hello& hello, const DialPatience& patience);

}  // namespace troika::net
