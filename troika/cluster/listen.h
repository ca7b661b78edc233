// Where the servers of this room listen.
#pragma once

#include <string>

#include "troika/cluster/environment.h"
#include "troika/net/descriptor.h"

namespace troika::cluster {

// The interface that servers bind to, by its name or one of its addresses; all when it is not set.
inline constexpr const char* kInterfaceVariable = "TROIKA_SOCKET_IFNAME";

// The numeric address of this machine to bind to, for those who know rank 0's or the hosting
// launch's machine as `address`: a loopback address where that is one, else that of
// kInterfaceVariable's interface if set, else "", all. Throws what net::interface_address() throws.
std::string place_to_bind(const std::string& address,
                          const Variables& variables = process_variable);

struct Listening {
  net::Descriptor socket;  // nonblocking
  std::string address;     // by which this process reaches it
  int port = 0;
};

// Listens for those who know this machine as `address`: on it alone where it is of the loopback
// interface, else on kInterfaceVariable's interface if set, else on all. Port 0 takes any. Throws
// Error(cluster, usage) naming the port when it is taken.
Listening listen_for(const std::string& address, int port,
                     const Variables& variables = process_variable);
// The same, with an invalid socket in place of that error.
Listening try_listen_for(const std::string& address, int port,
                         const Variables& variables = process_variable);

}  // namespace troika::cluster
