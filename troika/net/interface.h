// Network interfaces of this machine.
#pragma once

#include <string>
#include <vector>

namespace troika::net {

// The numeric address that a listener binds to for `choice`, the name of an interface ("eth0") or a
// numeric address of this machine; of an interface's addresses the first IPv4 one, else the first
// IPv6 one that other machines can reach. Throws Error(net, usage) naming `source`, where the
// choice comes from, and the interfaces there are.
std::string interface_address(const std::string& choice, const std::string& source);

// Numeric addresses at which other machines may reach this one: first the one from which it sends
// to `toward`, a name or a numeric address, then those of its other interfaces that are up. Without
// loopback and link-local addresses. May block on a name server.
std::vector<std::string> own_addresses(const std::string& toward);

// The same text for processes that reach each other on the loopback interface, and for no others:
// the boot and the network namespace. "" where the system does not tell.
std::string loopback_id();

}  // namespace troika::net
