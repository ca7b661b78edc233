// Network interfaces of this machine.
#pragma once

#include <string>
#include <vector>

namespace troika::net {

// Returns the numeric address to listen on. `choice` is the name of an interface ("eth0") or a
// numeric address of this machine. For an interface, returns its first IPv4 address, otherwise its
// first IPv6 address that is not link-local. Throws Error(net, usage) that names `source`, the
// origin of `choice`, and the available interfaces.
std::string interface_address(const std::string& choice, const std::string& source);

// Returns numeric addresses at which other machines may reach this one. The first is the source
// address for packets to `toward`, a name or a numeric address; then follow those of the other
// interfaces that are up. Excludes loopback and IPv6 link-local addresses. May block on a name
// server.
std::vector<std::string> own_addresses(const std::string& toward);

// Returns an identifier of this loopback interface (boot id and network namespace). Two processes
// have the same identifier exactly if they can reach each other over loopback. Empty if unknown.
std::string loopback_id();

}  // namespace troika::net
