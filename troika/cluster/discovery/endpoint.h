// The address to which the launches of an elastic run connect.
#pragma once

#include <string>

namespace troika::cluster {

struct Endpoint {
  std::string address;
  int port = 0;
};

// Parses "host", "host:port" or "[IPv6 address]:port". The default port is kDefaultPort. Throws
// Error(cluster, usage).
Endpoint parse_endpoint(const std::string& text);

// Whether the name resolves to an address of this machine. May block on a name server.
bool is_this_machine(const std::string& address);

}  // namespace troika::cluster
