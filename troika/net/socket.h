// TCP sockets.
#pragma once

#include <string>
#include <string_view>

#include "troika/base/clock.h"
#include "troika/net/descriptor.h"

namespace troika::net {

// "localhost", 127.x.y.z or ::1.
bool is_loopback(const std::string& address);
// Whether all addresses of the name are of this machine. Name resolution may block.
bool is_this_machine(const std::string& address);

// Returns a nonblocking listening socket at this numeric address of this machine; all addresses if
// empty. Port 0 selects a free port. On failure returns an invalid descriptor and sets `error` to
// the errno.
Descriptor listen_at(const std::string& address, int port, int& error);
int port_of(const Descriptor& listener);

// Tries each address of the name once. On failure `problem` says why the last one failed. Name
// resolution may block beyond the deadline.
struct Attempt {
  Descriptor socket;  // nonblocking
  std::string problem;
};
Attempt try_connect(const std::string& address, int port, Deadline deadline);

// Limits the unsent bytes that the kernel buffers for a tuned socket (TCP_NOTSENT_LOWAT). On a slow
// link, a larger value would delay later frames, such as grants for messages in the other
// direction.
inline constexpr int kMostUnsent = 128 << 10;

// The send buffer for a connection inside a machine in bytes (SO_SNDBUF; the kernel doubles it for
// its own headers). With automatic buffers of several megabytes, a message's pages leave the cache
// before the peer copies them (docs/benchmarks.md). The kernel may limit it (net.core.wmem_max).
inline constexpr int kLocalBuffer = 512 << 10;

// Sets the options of a TCP socket: sends small messages at once, limits unsent bytes, and detects
// a dead machine within half a minute. Sets the buffer of a Unix socket.
void tune(int socket);

// Appends the available bytes without waiting. Returns false when the connection has ended;
// `reason` says why.
bool receive(int socket, std::string& bytes, std::string& reason);

// Sends what the socket accepts without waiting and removes it from `bytes`. Returns false when the
// connection has ended; `reason` says why.
bool send_some(int socket, std::string_view& bytes, std::string& reason);

std::string host_name();

}  // namespace troika::net
