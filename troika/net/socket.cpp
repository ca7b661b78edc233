#include "troika/net/socket.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

namespace troika::net {

namespace {

void set_option(int socket, int level, int option, int value) {
  ::setsockopt(socket, level, option, &value, sizeof(value));
}

struct Place {
  sockaddr_storage address{};
  socklen_t size = 0;
  int family() const { return address.ss_family; }
};

// The wildcard address of a family.
Place any_address(int family, int port) {
  Place place;
  place.address.ss_family = static_cast<sa_family_t>(family);
  if (family == AF_INET) {
    place.size = sizeof(sockaddr_in);
    reinterpret_cast<sockaddr_in&>(place.address).sin_port = htons(static_cast<uint16_t>(port));
  } else {
    place.size = sizeof(sockaddr_in6);
    reinterpret_cast<sockaddr_in6&>(place.address).sin6_port = htons(static_cast<uint16_t>(port));
  }
  return place;
}

using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

AddressList resolve(const std::string& address, int port, int flags, int& code) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* raw = nullptr;
  code = ::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &raw);
  return {code == 0 ? raw : nullptr, &::freeaddrinfo};
}

// Servers on loopback listen on IPv4, even if "localhost" resolves to IPv6 first.
std::string numeric(const std::string& address) {
  return address == "localhost" ? "127.0.0.1" : address;
}

Descriptor bind_listener(const Place& place, int& error) {
  Descriptor socket(::socket(place.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  error = errno;
  if (!socket) return socket;
  if (place.family() == AF_INET6) set_option(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  // Otherwise the port of a run that has just ended stays in use for a minute.
  set_option(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&place.address), place.size) != 0 ||
      ::listen(socket.get(), SOMAXCONN) != 0) {
    error = errno;
    socket.reset();
  }
  return socket;
}

// Connecting to a free port of the own machine can connect a socket to itself (TCP simultaneous
// open).
bool connected_to_itself(int socket) {
  sockaddr_storage here{}, there{};
  socklen_t here_size = sizeof(here), there_size = sizeof(there);
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&here), &here_size);
  ::getpeername(socket, reinterpret_cast<sockaddr*>(&there), &there_size);
  return here_size == there_size && std::memcmp(&here, &there, here_size) == 0;
}

bool is_loopback(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    return ntohl(v4.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&v6) ||
         (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == IN_LOOPBACKNET);
}

bool has_same_host(const sockaddr_storage& one, const sockaddr_storage& other) {
  if (one.ss_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in&>(one).sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in&>(other).sin_addr.s_addr;
  }
  return IN6_ARE_ADDR_EQUAL(&reinterpret_cast<const sockaddr_in6&>(one).sin6_addr,
                            &reinterpret_cast<const sockaddr_in6&>(other).sin6_addr);
}

// Whether both ends are on this machine. May be false for an end at a second address of it.
bool stays_on_machine(int socket) {
  sockaddr_storage here{}, there{};
  socklen_t here_size = sizeof(here), there_size = sizeof(there);
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&here), &here_size) != 0) return false;
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&there), &there_size) != 0) return false;
  return here.ss_family == AF_UNIX || is_loopback(here) || is_loopback(there) ||
         has_same_host(here, there);
}

// Returns 0 or an errno.
int connect_one(const Descriptor& socket, const addrinfo& address, Deadline deadline) {
  if (!socket) return errno;
  if (::connect(socket.get(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return errno;
    if (!wait_for(socket.get(), POLLOUT, deadline)) return ETIMEDOUT;
    int error = 0;
    socklen_t size = sizeof(error);
    ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return error;
  }
  return connected_to_itself(socket.get()) ? ECONNREFUSED : 0;
}

}  // namespace

bool is_loopback(const std::string& address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.");
}

Descriptor listen_at(const std::string& address, int port, int& error) {
  if (address.empty()) {
    Descriptor listener = bind_listener(any_address(AF_INET6, port), error);
    // On machines without IPv6, falls back to IPv4.
    const bool no_ipv6 = error == EAFNOSUPPORT || error == EADDRNOTAVAIL;
    return listener || !no_ipv6 ? std::move(listener)
                                : bind_listener(any_address(AF_INET, port), error);
  }
  int code = 0;
  const auto list = resolve(address, port, AI_NUMERICHOST | AI_PASSIVE, code);
  if (!list) {
    error = EADDRNOTAVAIL;
    return {};
  }
  Place place;
  place.size = list->ai_addrlen;
  std::memcpy(&place.address, list->ai_addr, list->ai_addrlen);
  return bind_listener(place, error);
}

int port_of(const Descriptor& listener) {
  sockaddr_storage storage{};
  socklen_t size = sizeof(storage);
  ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&storage), &size);
  return ntohs(storage.ss_family == AF_INET ? reinterpret_cast<sockaddr_in&>(storage).sin_port
                                            : reinterpret_cast<sockaddr_in6&>(storage).sin6_port);
}

bool is_this_machine(const std::string& address) {
  int code = 0;
  const auto list = resolve(numeric(address), 0, 0, code);
  // Only a machine's own addresses can be bound.
  for (const addrinfo* entry = list.get(); entry; entry = entry->ai_next) {
    const Descriptor socket(::socket(entry->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!socket || ::bind(socket.get(), entry->ai_addr, entry->ai_addrlen) != 0) return false;
  }
  return list != nullptr;
}

Attempt try_connect(const std::string& address, int port, Deadline deadline) {
  Attempt attempt;
  int code = 0;
  const auto list = resolve(numeric(address), port, 0, code);
  if (!list) {
    attempt.problem = code == EAI_SYSTEM ? system_reason(errno) : ::gai_strerror(code);
    return attempt;
  }
  int left = 0;
  for (const addrinfo* entry = list.get(); entry; entry = entry->ai_next) ++left;
  // Divides the time, so that one unresponsive address leaves time for the others.
  for (const addrinfo* entry = list.get(); entry; entry = entry->ai_next, --left) {
    attempt.socket = Descriptor(
        ::socket(entry->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, entry->ai_protocol));
    const int error = connect_one(attempt.socket, *entry, Deadline::after(deadline.left() / left));
    if (error == 0) return attempt;
    attempt.socket.reset();
    attempt.problem = system_reason(error);
  }
  return attempt;
}

void tune(int socket) {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, 25'000);
  set_option(socket, IPPROTO_TCP, TCP_NOTSENT_LOWAT, kMostUnsent);
  if (stays_on_machine(socket)) set_option(socket, SOL_SOCKET, SO_SNDBUF, kLocalBuffer);
}

bool receive(int socket, std::string& bytes, std::string& reason) {
  std::array<char, 1 << 16> chunk;
  while (true) {
    const ssize_t got = ::recv(socket, chunk.data(), chunk.size(), 0);
    if (got > 0) {
      bytes.append(chunk.data(), static_cast<size_t>(got));
      // After a full chunk there may be more bytes; the caller's poll() reports those.
      return true;
    }
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    reason = got == 0 ? "its connection closed" : system_reason(errno);
    return false;
  }
}

bool send_some(int socket, std::string_view& bytes, std::string& reason) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return true;
    } else if (errno != EINTR) {
      reason = system_reason(errno);
      return false;
    }
  }
  return true;
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown host";
}

}  // namespace troika::net
