#include "troika/quorum/member_endpoint.h"

#include <fmt/format.h>
#include <unistd.h>

#include <random>
#include <string>

#include "troika/net/interface.h"

namespace troika::quorum {

namespace {

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

}  // namespace

net::TcpOptions member_endpoint(const MemberOptions& options) {
  return {.name = fmt::format("replica {}, process {}-{:08x}", options.rank, ::getpid(),
                              std::random_device()()),
          .secret = options.secret,
          .listen = {{is_loopback(options.lighthouse.host) ? "127.0.0.1" : "", 0}},
          .polls = false};
}

std::vector<net::Address> addresses_of(const net::TcpEndpoint& endpoint,
                                       const net::Address& lighthouse) {
  const int port = endpoint.addresses().front().port;
  if (is_loopback(lighthouse.host)) return {{"127.0.0.1", port}};
  std::vector<net::Address> result;
  for (const auto& host : net::own_addresses(lighthouse.host)) result.push_back({host, port});
  return result;
}

}  // namespace troika::quorum
