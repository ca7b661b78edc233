#include "troika/cluster/socket.h"

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

#include "troika/base/error.h"
#include "troika/cluster/port.h"

namespace troika::cluster {

namespace {

bool is_loopback(const std::string& address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.");
}

void set_option(int socket, int level, int option, int value) {
  ::setsockopt(socket, level, option, &value, sizeof(value));
}

// A socket bound to any address of the family or its loopback; an errno instead on failure.
Descriptor bind_listener(int family, bool loopback, int port, int& error) {
  Descriptor socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  error = errno;
  if (!socket) return socket;
  sockaddr_storage storage{};
  socklen_t size = sizeof(sockaddr_in);
  if (family == AF_INET) {
    auto& address = reinterpret_cast<sockaddr_in&>(storage);
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(loopback ? INADDR_LOOPBACK : INADDR_ANY);
  } else {
    auto& address = reinterpret_cast<sockaddr_in6&>(storage);
    address.sin6_family = AF_INET6;
    address.sin6_port = htons(static_cast<uint16_t>(port));
    address.sin6_addr = loopback ? in6addr_loopback : in6addr_any;
    size = sizeof(sockaddr_in6);
    set_option(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  }
  // Without it the port of a run that just ended stays taken for a minute.
  set_option(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&storage), size) != 0 ||
      ::listen(socket.get(), SOMAXCONN) != 0) {
    error = errno;
    socket.reset();
  }
  return socket;
}

// Connecting to a free port of this very machine can meet itself (TCP simultaneous open).
bool connected_to_itself(int socket) {
  sockaddr_storage here{}, there{};
  socklen_t here_size = sizeof(here), there_size = sizeof(there);
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&here), &here_size);
  ::getpeername(socket, reinterpret_cast<sockaddr*>(&there), &there_size);
  return here_size == there_size && std::memcmp(&here, &there, here_size) == 0;
}

// Zero or an errno.
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

Descriptor listen_at(const std::string& address, int port, int& error) {
  const bool loopback = is_loopback(address);
  Descriptor listener;
  if (!loopback || address == "::1") listener = bind_listener(AF_INET6, loopback, port, error);
  // Machines without IPv6.
  const bool try_ipv4 =
      loopback ? address != "::1" : error == EAFNOSUPPORT || error == EADDRNOTAVAIL;
  if (!listener && try_ipv4) listener = bind_listener(AF_INET, loopback, port, error);
  return listener;
}

}  // namespace

Descriptor try_listen_at(const std::string& address, int port) {
  int error = 0;
  return listen_at(address, port, error);
}

Descriptor listen_at(const std::string& address, int port) {
  int error = 0;
  Descriptor listener = listen_at(address, port, error);
  if (!listener) {
    const PortRange ephemeral = ephemeral_range();
    const bool anybodys = port >= ephemeral.low && port <= ephemeral.high;
    throw Error(
        "cluster", ErrorKind::usage,
        {.what = fmt::format("cannot listen on port {}", port),
         .got = system_reason(error),
         .expected = "a free port",
         .hint = anybodys ? fmt::format("set MASTER_PORT, the same on all ranks, outside {}-{}, "
                                        "where any connection of any program may take a port",
                                        ephemeral.low, ephemeral.high)
                          : "set MASTER_PORT, the same on all ranks, or end the program that has "
                            "it"});
  }
  return listener;
}

int port_of(const Descriptor& listener) {
  sockaddr_storage storage{};
  socklen_t size = sizeof(storage);
  ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&storage), &size);
  return ntohs(storage.ss_family == AF_INET ? reinterpret_cast<sockaddr_in&>(storage).sin_port
                                            : reinterpret_cast<sockaddr_in6&>(storage).sin6_port);
}

Attempt try_connect(const std::string& address, int port, Deadline deadline) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* raw = nullptr;
  // The server of a loopback name listens on IPv4, whatever the name resolves to first.
  const std::string name = address == "localhost" ? "127.0.0.1" : address;
  const int code = ::getaddrinfo(name.c_str(), std::to_string(port).c_str(), &hints, &raw);
  Attempt attempt;
  if (code != 0) {
    attempt.problem = code == EAI_SYSTEM ? system_reason(errno) : ::gai_strerror(code);
    return attempt;
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> list(raw, &::freeaddrinfo);
  for (const addrinfo* entry = list.get(); entry; entry = entry->ai_next) {
    attempt.socket = Descriptor(
        ::socket(entry->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, entry->ai_protocol));
    const int error = connect_one(attempt.socket, *entry, deadline);
    attempt.heard |= error == 0 || error == ECONNREFUSED || error == ECONNRESET;
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
}

bool receive(int socket, std::string& bytes, std::string& reason) {
  std::array<char, 1 << 16> chunk;
  while (true) {
    const ssize_t got = ::recv(socket, chunk.data(), chunk.size(), 0);
    if (got > 0) {
      bytes.append(chunk.data(), static_cast<size_t>(got));
      // A full chunk may have more behind it; the caller's poll() comes back for that.
      return true;
    }
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    reason = got == 0 ? "its connection closed" : system_reason(errno);
    return false;
  }
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown host";
}

}  // namespace troika::cluster
