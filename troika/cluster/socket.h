// TCP sockets of the control connection.
#pragma once

#include <string>

#include "troika/base/clock.h"
#include "troika/cluster/descriptor.h"

namespace troika::cluster {

// A nonblocking listener: on the loopback interface when `address` is one, else on all. Port 0
// takes any. Throws Error(cluster, usage) naming the port when it is taken.
Descriptor listen_at(const std::string& address, int port);
// The same, with nothing in place of the error.
Descriptor try_listen_at(const std::string& address, int port);
int port_of(const Descriptor& listener);

// One attempt to connect to any of the name's addresses; else why the last of them failed. A name
// server can block longer than the deadline.
struct Attempt {
  Descriptor socket;
  std::string problem;
  bool heard = false;  // of the machine: it accepted, or refused because nobody listens yet
};
Attempt try_connect(const std::string& address, int port, Deadline deadline);

// Small frames at once, and the death of a machine noticed within half a minute.
void tune(int socket);

// Appends what is there to read without waiting. False when the connection has ended; `reason` says
// how.
bool receive(int socket, std::string& bytes, std::string& reason);

std::string host_name();

}  // namespace troika::cluster
