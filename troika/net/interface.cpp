#include "troika/net/interface.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <memory>
#include <set>

#include "troika/base/error.h"
#include "troika/net/descriptor.h"
#include "troika/net/socket.h"

namespace troika::net {

namespace {

std::string numeric(const sockaddr* address) {
  const socklen_t size = address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  std::array<char, NI_MAXHOST> text{};
  const int code =
      ::getnameinfo(address, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  return code == 0 ? text.data() : "";
}

using InterfaceList = std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)>;

InterfaceList list_interfaces() {
  ifaddrs* raw = nullptr;
  if (::getifaddrs(&raw) != 0) fail_system("net", "list the network interfaces", errno);
  return {raw, &::freeifaddrs};
}

// Returns this machine's source address for packets to `to`; "" without a route.
std::string source_address(const std::string& to) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* raw = nullptr;
  if (::getaddrinfo(to.c_str(), "9", &hints, &raw) != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> list(raw, &::freeaddrinfo);
  for (const addrinfo* entry = list.get(); entry; entry = entry->ai_next) {
    // Connecting a UDP socket sends no packet.
    const Descriptor socket(::socket(entry->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!socket || ::connect(socket.get(), entry->ai_addr, entry->ai_addrlen) != 0) continue;
    sockaddr_storage here{};
    socklen_t size = sizeof(here);
    ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&here), &size);
    return numeric(reinterpret_cast<const sockaddr*>(&here));
  }
  return {};
}

bool has_zone(const std::string& address) {
  return address.find('%') != std::string::npos;
}

}  // namespace

bool is_link_local(const std::string& address) {
  return has_zone(address) || address.starts_with("169.254.");
}

std::string interface_address(const std::string& choice, const std::string& source) {
  const InterfaceList list = list_interfaces();
  std::string ipv4, ipv6;
  std::set<std::string> names;
  for (const ifaddrs* entry = list.get(); entry; entry = entry->ifa_next) {
    const int family = entry->ifa_addr ? entry->ifa_addr->sa_family : AF_UNSPEC;
    if (family != AF_INET && family != AF_INET6) continue;
    const std::string address = numeric(entry->ifa_addr);
    if (address == choice) return address;
    names.insert(entry->ifa_name);
    if (entry->ifa_name != choice) continue;
    std::string& first = family == AF_INET ? ipv4 : ipv6;
    if (first.empty() && !has_zone(address)) first = address;
  }
  const std::string& address = ipv4.empty() ? ipv6 : ipv4;
  if (!address.empty()) return address;
  throw Error("net", ErrorKind::usage,
              {.what = fmt::format("{} names no network interface with an address", source),
               .got = choice,
               .expected = fmt::format("one of {}, or an address of this machine",
                                       fmt::join(names, ", "))});
}

std::vector<std::string> own_addresses(const std::string& toward) {
  std::vector<std::string> found;
  const auto add = [&](const std::string& address) {
    const bool is_known = std::ranges::find(found, address) != found.end();
    if (address.empty() || is_known || is_loopback(address) || has_zone(address)) return;
    found.push_back(address);
  };
  add(source_address(toward));
  const InterfaceList list = list_interfaces();
  for (const ifaddrs* entry = list.get(); entry; entry = entry->ifa_next) {
    const int family = entry->ifa_addr ? entry->ifa_addr->sa_family : AF_UNSPEC;
    if (family != AF_INET && family != AF_INET6) continue;
    const auto address = numeric(entry->ifa_addr);
    if ((entry->ifa_flags & IFF_UP) && !is_link_local(address)) add(address);
  }
  return found;
}

std::string loopback_id() {
  std::string boot;
  struct stat names {};
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  if (!std::getline(file, boot) || ::stat("/proc/self/ns/net", &names) != 0) return {};
  return fmt::format("{} {} {}", boot, names.st_dev, names.st_ino);
}

}  // namespace troika::net
