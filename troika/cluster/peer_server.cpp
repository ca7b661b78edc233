#include "troika/cluster/peer_server.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <utility>
#include <vector>

#include "troika/base/error.h"

namespace troika::cluster {

namespace {

constexpr Milliseconds kLastWordTime{1000};
constexpr size_t kMaxHelloFrame = 1 << 16;

}  // namespace

PeerServer::PeerServer(Descriptor listener) : listener_(std::move(listener)) {}

void PeerServer::run(const Waker& stop) {
  while (true) {
    const auto until = deadline();
    wait(&stop, until ? until->left() : Milliseconds::max());
    pollfd woken{stop.fd(), POLLIN, 0};
    if (::poll(&woken, 1, 0) > 0) return;
    const auto now_until = deadline();
    if (now_until && now_until->passed()) late();
    settle();
  }
}

void PeerServer::wait(const Waker* stop, Milliseconds at_most) {
  std::vector<pollfd> entries;
  if (stop) entries.push_back({stop->fd(), POLLIN, 0});
  if (listener_) entries.push_back({listener_.get(), POLLIN, 0});
  const size_t first = entries.size();
  for (const auto& connection : connections_) {
    const bool writes = !connection.out.empty();
    entries.push_back(
        {connection.socket.get(), static_cast<short>(POLLIN | (writes ? POLLOUT : 0)), 0});
  }
  constexpr int64_t kLongest = std::numeric_limits<int>::max();
  const auto timeout =
      at_most == Milliseconds::max() ? -1 : std::min<int64_t>(at_most.count(), kLongest);
  if (::poll(entries.data(), entries.size(), static_cast<int>(timeout)) <= 0) return;
  size_t i = first;
  for (auto& connection : connections_) {
    if (entries[i++].revents & (POLLIN | POLLHUP | POLLERR)) read(connection);
  }
  if (listener_ && entries[first - 1].revents) accept_all();
}

void PeerServer::accept_all() {
  while (true) {
    Descriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      if (errno == EINTR || errno == ECONNABORTED) continue;
      const std::string reason = system_reason(errno);
      listener_.reset();  // it would stay readable for ever
      return cannot_accept(reason);
    }
    connections_.emplace_back(std::move(socket));
  }
}

void PeerServer::read(Peer& from) {
  from.read();
  try {
    while (from.talks()) {
      const auto frame = from.in.next(from.admitted() ? kMaxFrame : kMaxHelloFrame);
      if (!frame) break;
      handle(from, *frame);
    }
  } catch (const Error& problem) {
    from.ended = true;
    from.reason = problem.what();
  }
}

void PeerServer::settle() {
  while (true) {
    before_flush();
    for (auto& connection : connections_) connection.flush();
    const auto gone = std::ranges::find_if(connections_, &Peer::ended);
    if (gone == connections_.end()) return;
    std::list<Peer> grave;
    grave.splice(grave.begin(), connections_, gone);
    part_from(grave.front());
  }
}

void PeerServer::finish(const std::function<void(Peer&)>& last_word) {
  listener_.reset();
  std::erase_if(connections_, [](const Peer& c) { return !c.admitted() && !c.closing; });
  for (auto& connection : connections_) {
    if (connection.closing) continue;
    last_word(connection);
    connection.closing = true;
  }
  const auto deadline = Deadline::after(kLastWordTime);
  settle();
  while (!connections_.empty() && !deadline.passed()) {
    wait(nullptr, deadline.left());
    settle();
  }
}

}  // namespace troika::cluster
