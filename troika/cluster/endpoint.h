// Where launches of an elastic run meet.
#pragma once

#include <string>

namespace troika::cluster {

struct Endpoint {
  std::string address;
  int port = 0;
};

// "host", "host:port" or "[IPv6 address]:port"; without a port it is kDefaultPort. Throws
// Error(cluster, usage).
Endpoint parse_endpoint(const std::string& text);

// Whether one of the name's addresses belongs to this machine.
bool is_this_machine(const std::string& address);

}  // namespace troika::cluster
