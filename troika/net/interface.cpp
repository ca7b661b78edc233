#include "troika/net/interface.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <fstream>
#include <memory>
#include <set>

#include "troika/base/error.h"
#include "troika/net/descriptor.h"

namespace troika::net {

namespace {

std::string numeric(const sockaddr* address) {
  const socklen_t size = address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  std::array<char, NI_MAXHOST> text{};
  const int code =
      ::getnameinfo(address, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  return code == 0 ? text.data() : "";
}

}  // namespace

std::string interface_address(const std::string& choice, const std::string& source) {
  ifaddrs* raw = nullptr;
  if (::getifaddrs(&raw) != 0) fail_system("net", "list the network interfaces", errno);
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> list(raw, &::freeifaddrs);
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
    const bool link_local = address.find('%') != std::string::npos;
    if (first.empty() && !link_local) first = address;
  }
  const std::string& address = ipv4.empty() ? ipv6 : ipv4;
  if (!address.empty()) return address;
  throw Error("net", ErrorKind::usage,
              {.what = fmt::format("{} names no network interface with an address", source),
               .got = choice,
               .expected = fmt::format("one of {}, or an address of this machine",
                                       fmt::join(names, ", "))});
}

std::string loopback_id() {
  std::string boot;
  struct stat names {};
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  if (!std::getline(file, boot) || ::stat("/proc/self/ns/net", &names) != 0) return {};
  return fmt::format("{} {} {}", boot, names.st_dev, names.st_ino);
}

}  // namespace troika::net
