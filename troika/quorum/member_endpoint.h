// The endpoint of a member: its name, and where the other members find it.
#pragma once

#include <vector>

#include "troika/net/tcp_endpoint.h"
#include "troika/quorum/member.h"

namespace troika::quorum {

// The name differs for each process, also for one that takes the place of a lost one. Listens on
// the loopback interface if the lighthouse is there, otherwise on all interfaces.
net::TcpOptions member_endpoint(const MemberOptions& options);

// Returns the addresses of a listening endpoint at which the other members reach it.
std::vector<net::Address> addresses_of(const net::TcpEndpoint& endpoint,
                                       const net::Address& lighthouse);

}  // namespace troika::quorum
