// Measured bandwidths of the links between workers and summation servers. Internal to the folder.
#pragma once

#include <string>
#include <vector>

#include "troika/comm/group.h"
#include "troika/net/endpoint.h"

namespace troika::parallel {

// Returns the bandwidth of each server's link, in bytes per second: the rate at which all ranks on
// other machines together can send to it, shared by the servers beside the ranks of one machine.
// The last servers are those beside the ranks, in their order. A link that is faster than all
// others together counts as their sum, which no split can tell from its own rate. Servers are
// measured one after the other; each takes 0.05 s or 16 MB of each rank. The endpoint must be
// connected to the servers, and have no other SummationClient. Called by all ranks; blocks. Throws
// the errors of SummationClient::wait().
std::vector<double> measure_links(const comm::Group& group, net::Endpoint& endpoint,
                                  const std::vector<std::string>& servers);

}  // namespace troika::parallel
