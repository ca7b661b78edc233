// TCP sockets.
#pragma once

#include <string>
#include <string_view>

#include "troika/base/clock.h"
#include "troika/net/descriptor.h"

namespace troika::net {

// "localhost", 127.x.y.z or ::1.
bool is_loopback(const std::string& address);

// A nonblocking listener at this numeric address of this machine, at all of them when it is empty.
// Port 0 takes any. Else an invalid descriptor, and `error` is the errno.
Descriptor listen_at(const std::string& address, int port, int& error);
int port_of(const Descriptor& listener);

// One attempt to connect to any of the name's addresses; else why the last of them failed. A name
// server can block longer than the deadline.
struct Attempt {
  Descriptor socket;  // nonblocking
  std::string problem;
};
Attempt try_connect(const std::string& address, int port, Deadline deadline);

// Bytes that the kernel holds of a tuned socket and cannot send yet, about: on a slow link, more
// would delay what is written later, such as the grants of messages that go the other way.
inline constexpr int kMostUnsent = 128 << 10;

// Bytes to send that the kernel holds for a peer on this machine, about half of what it counts with
// its own headers. With the megabytes of automatic buffers, a message's pages leave the cache
// before the peer copies them (docs/benchmarks.md).
inline constexpr int kLoopbackBuffer = 128 << 10;

// Small messages at once, little in front of them, and the death of a machine noticed within half a
// minute.
void tune(int socket);

// Appends what is there to read without waiting. False when the connection has ended; `reason` says
// how.
bool receive(int socket, std::string& bytes, std::string& reason);

// Sends what the socket takes without waiting and removes it from `bytes`. False when the
// connection has ended; `reason` says how.
bool send_some(int socket, std::string_view& bytes, std::string& reason);

std::string host_name();

}  // namespace troika::net
