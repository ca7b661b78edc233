#include "troika/cluster/discovery/listen.h"

#include <fmt/format.h>

#include "troika/base/error.h"
#include "troika/cluster/discovery/port.h"
#include "troika/net/interface.h"
#include "troika/net/socket.h"

namespace troika::cluster {

namespace {

Listening listen(const std::string& address, int port, const Variables& variables, int& error) {
  Listening listening;
  listening.address = place_to_bind(address, variables);
  listening.socket = net::listen_at(listening.address, port, error);
  if (listening.socket) listening.port = net::port_of(listening.socket);
  // The name that others use for this machine may not be reachable from this process itself.
  if (listening.address.empty()) listening.address = "127.0.0.1";
  return listening;
}

}  // namespace

std::string place_to_bind(const std::string& address, const Variables& variables) {
  if (address == "localhost") return "127.0.0.1";
  if (net::is_loopback(address)) return address;
  const auto choice = variables(kInterfaceVariable);
  return choice && !choice->empty() ? net::interface_address(*choice, kInterfaceVariable) : "";
}

Listening try_listen_for(const std::string& address, int port, const Variables& variables) {
  int error = 0;
  return listen(address, port, variables, error);
}

Listening listen_for(const std::string& address, int port, const Variables& variables) {
  int error = 0;
  Listening listening = listen(address, port, variables, error);
  if (listening.socket) return listening;
  const PortRange ephemeral = ephemeral_range();
  const bool anybodys = port >= ephemeral.low && port <= ephemeral.high;
  throw Error(
      "cluster", ErrorKind::usage,
      {.what = fmt::format("cannot listen on port {}", port),
       .got = net::system_reason(error),
       .expected = "a free port",
       .hint = anybodys ? fmt::format("set MASTER_PORT, the same on all ranks, outside {}-{}, "
                                      "where any connection of any program may take a port",
                                      ephemeral.low, ephemeral.high)
                        : "set MASTER_PORT, the same on all ranks, or end the program that has "
                          "it"});
}

}  // namespace troika::cluster
