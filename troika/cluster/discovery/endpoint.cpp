#include "troika/cluster/discovery/endpoint.h"

#include <netdb.h>
#include <sys/socket.h>

#include <memory>

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/cluster/discovery/port.h"
#include "troika/net/descriptor.h"

namespace troika::cluster {

namespace {

[[noreturn]] void refuse(const std::string& text) {
  throw Error("cluster", ErrorKind::usage,
              {.what = "rendezvous endpoint",
               .got = '"' + text + '"',
               .expected = "HOST or HOST:PORT with a port from 1 to 65535",
               .hint = "an IPv6 address is written in brackets"});
}

}  // namespace

Endpoint parse_endpoint(const std::string& text) {
  const bool in_brackets = text.starts_with('[');
  const size_t end = in_brackets ? text.find(']') : text.find(':');
  if (in_brackets && end == std::string::npos) refuse(text);
  Endpoint result{.address = text.substr(in_brackets, end - (in_brackets ? 1 : 0)),
                  .port = kDefaultPort};
  if (result.address.empty()) refuse(text);
  const std::string rest = end == std::string::npos ? "" : text.substr(end + (in_brackets ? 1 : 0));
  if (rest.empty()) return result;
  const auto port = rest.starts_with(':') ? parse_int(rest.substr(1)) : std::nullopt;
  if (!port || *port < 1 || *port > 65535) refuse(text);
  result.port = static_cast<int>(*port);
  return result;
}

bool is_this_machine(const std::string& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* raw = nullptr;
  if (::getaddrinfo(address.c_str(), nullptr, &hints, &raw) != 0) return false;
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> list(raw, &::freeaddrinfo);
  for (const addrinfo* entry = list.get(); entry; entry = entry->ai_next) {
    const net::Descriptor socket(
        ::socket(entry->ai_family, entry->ai_socktype | SOCK_CLOEXEC, entry->ai_protocol));
    // bind() succeeds only for this machine's own addresses. Port 0 is always free.
    if (socket && ::bind(socket.get(), entry->ai_addr, entry->ai_addrlen) == 0) return true;
  }
  return false;
}

}  // namespace troika::cluster
