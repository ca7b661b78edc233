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
// interfaces that are up. Excludes loopback and link-local addresses; a link-local IPv4 address is
// included if it is the first. May block on a name server.
std::vector<std::string> own_addresses(const std::string& toward);

// Whether a numeric address is valid on one link only: IPv6 with a zone ("fe80::1%eth0"), or IPv4
// of 169.254.0.0/16 (RFC 3927), which machines give themselves when no server gives them one.
bool is_link_local(const std::string& address);

// Returns an identifier of this loopback interface (boot id and network namespace). Two processes
// have the same identifier exactly if they can reach each other over loopback. Empty if unknown.
std::string loopback_id();

}  // namespace troika::net
