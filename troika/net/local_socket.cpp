#include "troika/net/local_socket.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>

#include "troika/net/socket.h"

namespace troika::net {

namespace {

struct LocalName {
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  socklen_t size = 0;

  explicit LocalName(int port) {
    const auto name = "troika-net:" + std::to_string(port);
    // The zero before it makes the name abstract.
    std::ranges::copy(name, address.sun_path + 1);
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

Descriptor local_socket() {
  return Descriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

// Abstract names have no permissions, so any user of the machine may have taken this one.
bool listener_is_own(const Descriptor& socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return ::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         peer.uid == ::geteuid();
}

}  // namespace

Descriptor listen_locally(int port) {
  auto socket = local_socket();
  const LocalName name(port);
  if (socket && (::bind(socket.get(), name.get(), name.size) != 0 ||
                 ::listen(socket.get(), SOMAXCONN) != 0)) {
    socket.reset();
  }
  return socket;
}

Descriptor connect_locally(const std::string& host, int port) {
  auto socket = local_socket();
  const LocalName name(port);
  // First what takes no time: resolving a name may take seconds.
  if (socket && (::connect(socket.get(), name.get(), name.size) != 0 || !listener_is_own(socket) ||
                 !is_this_machine(host))) {
    socket.reset();
  }
  return socket;
}

}  // namespace troika::net
