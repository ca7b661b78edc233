// The addresses on which the servers of troika/cluster listen.
#pragma once

#include <string>

#include "troika/cluster/discovery/environment.h"
#include "troika/net/descriptor.h"

namespace troika::cluster {

// Variable with the name or an address of the interface that servers bind to. Not set: all
// interfaces.
inline constexpr const char* kInterfaceVariable = "TROIKA_SOCKET_IFNAME";

// Returns the numeric address to bind to, given that others know this machine as `address`: a
// loopback address if `address` is one; otherwise that of kInterfaceVariable's interface if set;
// otherwise "", all addresses. Throws like net::interface_address().
std::string place_to_bind(const std::string& address,
                          const Variables& variables = process_variable);

struct Listening {
  net::Descriptor socket;  // nonblocking
  std::string address;     // at which this process reaches the socket
  int port = 0;
};

// Listens on the address that place_to_bind() returns. Port 0 selects a free port. Throws
// Error(cluster, usage) with the port if it is in use.
Listening listen_for(const std::string& address, int port,
                     const Variables& variables = process_variable);
// Like listen_for(), but returns an invalid socket instead of throwing this error.
Listening try_listen_for(const std::string& address, int port,
                         const Variables& variables = process_variable);

}  // namespace troika::cluster
