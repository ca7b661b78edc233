// The client side of a connection between endpoints: a single attempt.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "troika/base/clock.h"
#include "troika/net/descriptor.h"
#include "troika/net/hello.h"

namespace troika::net {

struct Address {
  std::string host;  // a host name or a numeric IPv4 or IPv6 address
  int port = 0;
};

// Why an attempt failed.
struct DialFailure {
  enum class Kind : uint8_t {
    unreachable,  // no process listens there, or the connection broke
    refused,      // the connection was closed without an answer: different secrets, or the peer is
                  // closing
    wrong,        // an endpoint answered that does not hold the secret
    foreign,      // another program answered
    silent,       // no answer in time
    busy,         // another connection under this endpoint's name exists or is being made
  };
  Kind kind{};
  std::string detail = {};  // the system's reason, or what another program sent
};
// Returns the text for an error message.
std::string describe(const DialFailure& failure);

// Performs the client's handshake: sends the first message and waits for the answer. Blocks.
// `socket` must be new and nonblocking.
std::variant<SessionKeys, DialFailure> greet(int socket, const Secret& secret,
                                             const std::string& listener, Deadline deadline);

struct Dialed {
  Descriptor socket;  // nonblocking
  SessionKeys keys;   // for the frames
};
using DialResult = std::variant<Dialed, DialFailure>;

struct DialPatience {
  Deadline deadline;           // for the whole attempt
  Milliseconds connect{5000};  // until the connection is established
  Milliseconds answer{5000};   // from then until the peer has answered
};

// Connects one socket. Blocks. Throws Error(net, usage) if the peer refused.
DialResult dial(const std::string& peer, const Address& address, const Secret& secret,
                const Hello& hello, const DialPatience& patience);

}  // namespace troika::net
