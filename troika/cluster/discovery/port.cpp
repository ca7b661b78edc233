#include "troika/cluster/discovery/port.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <fstream>
#include <random>

#include "troika/base/error.h"
#include "troika/base/random.h"
#include "troika/net/descriptor.h"

namespace troika::cluster {

namespace {

// Lower ports belong to well-known services; jobs of batch systems usually use ports from 10000.
constexpr int kLowest = 10000;
constexpr int kHighest = 65535;

// The i-th port from kLowest to kHighest outside the range; wraps around.
int port_outside(PortRange ephemeral, uint64_t i) {
  const int below = std::max(0, std::min(ephemeral.low, kHighest + 1) - kLowest);
  const int first_above = std::max(ephemeral.high + 1, kLowest);
  const int above = std::max(0, kHighest - first_above + 1);
  if (below + above == 0) {
    throw Error("cluster", ErrorKind::usage,
                {.what = "no port is left for the ranks' rendezvous",
                 .got = fmt::format("ephemeral ports {}-{}", ephemeral.low, ephemeral.high),
                 .expected = fmt::format("ports outside them from {} to {}", kLowest, kHighest),
                 .hint = "set MASTER_PORT, or narrow net.ipv4.ip_local_port_range"});
  }
  const int index = static_cast<int>(i % static_cast<uint64_t>(below + above));
  return index < below ? kLowest + index : first_above + index - below;
}

bool can_bind(int port) {
  const net::Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  return socket &&
         ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
}

}  // namespace

PortRange ephemeral_range() {
  PortRange range{32768, 60999};
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> range.low >> range.high;
  return range;
}

int job_port(int64_t job, int64_t step, PortRange ephemeral) {
  // Counts instead of hashing: neighbouring jobs never collide, and the steps of a job are far from
  // the ports of the next jobs.
  return port_outside(ephemeral, static_cast<uint64_t>(job) + 4099 * static_cast<uint64_t>(step));
}

int free_port() {
  const PortRange ephemeral = ephemeral_range();
  // A random start avoids collisions of launchers that start together.
  const uint64_t start = Random(std::random_device()())();
  for (uint64_t i = 0; i <= kHighest; ++i) {
    const int port = port_outside(ephemeral, start / 2 + i);
    if (can_bind(port)) return port;
  }
  throw Error("cluster", ErrorKind::failure,
              {.what = "no free port on this machine",
               .expected = fmt::format("one outside {}-{}", ephemeral.low, ephemeral.high)});
}

}  // namespace troika::cluster
