#include "troika/cluster/peer_server.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <utility>
#include <vector>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/cluster/run_secret.h"

namespace troika::cluster {

namespace {

constexpr Milliseconds kLastWordTime{1000};
// Until a descriptor may be free.
constexpr Milliseconds kRestTime{100};

}  // namespace

PeerServer::PeerServer(net::Descriptor listener, net::ServerHandshake handshake, PeerLimits limits)
    : listener_(std::move(listener)), handshake_(std::move(handshake)), limits_(limits) {}

void PeerServer::run(const net::Waker& stop) {
  while (true) {
    wait(&stop, time_to_wait());
    pollfd woken{stop.fd(), POLLIN, 0};
    if (::poll(&woken, 1, 0) > 0) return;
    const auto until = deadline();
    if (until && until->passed()) late();
    end_the_silent();
    settle();
  }
}

Milliseconds PeerServer::time_to_wait() const {
  auto until = deadline();
  const auto consider = [&](const std::optional<Deadline>& other) {
    if (other && (!until || *other < *until)) until = other;
  };
  consider(rests_);
  for (const auto& connection : connections_) consider(connection.patience());
  return until ? until->left() : Milliseconds::max();
}

void PeerServer::wait(const net::Waker* stop, Milliseconds at_most) {
  if (rests_ && rests_->passed()) rests_.reset();
  const bool accepts = listener_ && !rests_ && has_room();
  std::vector<pollfd> entries;
  if (stop) entries.push_back({stop->fd(), POLLIN, 0});
  if (accepts) entries.push_back({listener_.get(), POLLIN, 0});
  const size_t first = entries.size();
  for (const auto& connection : connections_) {
    entries.push_back(
        {connection.socket(), static_cast<short>(POLLIN | (connection.writes() ? POLLOUT : 0)), 0});
  }
  constexpr int64_t kLongest = std::numeric_limits<int>::max();
  const auto timeout =
      at_most == Milliseconds::max() ? -1 : std::min<int64_t>(at_most.count(), kLongest);
  if (::poll(entries.data(), entries.size(), static_cast<int>(timeout)) <= 0) return;
  size_t i = first;
  for (auto& connection : connections_) {
    if (entries[i++].revents & (POLLIN | POLLHUP | POLLERR)) read(connection);
  }
  if (accepts && entries[first - 1].revents) accept_all();
}

bool PeerServer::has_room() const {
  return std::ranges::count_if(connections_, [](const Peer& peer) {
           return !peer.admitted() && !peer.is_stranger();
         }) < limits_.newcomers;
}

void PeerServer::accept_all() {
  while (has_room()) {
    net::Descriptor socket(
        ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      const int error = errno;
      if (error == EAGAIN || error == EWOULDBLOCK) return;
      const bool is_short =
          error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
      // The others concern the one connection alone, accept(2).
      if (!is_short || keep_strangers(0)) continue;
      if (accept_problem_.empty()) {
        log::warn("[cluster] cannot accept connections at the moment: {}",
                  net::system_reason(error));
      }
      accept_problem_ = net::system_reason(error);
      rests_ = Deadline::after(kRestTime);
      return;
    }
    // The first message of a client of ours is mostly there: then it is no stranger any more.
    read(connections_.emplace_back(std::move(socket), limits_.proof_time));
    keep_strangers(limits_.strangers);
  }
}

bool PeerServer::keep_strangers(ptrdiff_t most) {
  const auto counts = [](const Peer& peer) { return peer.is_stranger() && !peer.ended; };
  auto there = std::ranges::count_if(connections_, counts);
  const bool any = there > most;
  for (auto peer = connections_.begin(); there > most;) {
    const auto current = peer++;
    if (!counts(*current)) continue;
    connections_.erase(current);
    --there;
  }
  return any;
}

void PeerServer::end_the_silent() {
  for (auto& connection : connections_) {
    const auto patience = connection.patience();
    if (patience && patience->passed()) connection.end("it stayed silent");
  }
}

void PeerServer::read(Peer& from) {
  from.read(handshake_);
  take_frames(from);
}

void PeerServer::take_frames(Peer& from) {
  try {
    while (from.talks()) {
      const auto frame = from.next();
      if (!frame) break;
      handle(from, *frame);
    }
  } catch (const Error& problem) {
    from.end(problem.what());
  }
}

void PeerServer::settle() {
  while (true) {
    before_flush();
    std::list<Peer> grave;
    for (auto peer = connections_.begin(); peer != connections_.end();) {
      const auto current = peer++;
      current->flush();
      if (current->ended) grave.splice(grave.end(), connections_, current);
    }
    if (grave.empty()) return;
    for (auto& gone : grave) {
      unproven_ += gone.failed_proof;
      part_from(gone);
    }
  }
}

std::string PeerServer::unwelcome() const {
  std::string text = show_unproven(unproven_);
  if (!accept_problem_.empty()) {
    text += fmt::format("; some were not accepted: {} (raise ulimit -n)", accept_problem_);
  }
  return text;
}

void PeerServer::finish(const std::function<void(Peer&)>& last_word) {
  listener_.reset();
  // Who has just proved itself may still say hello and be refused.
  std::erase_if(connections_, [](const Peer& c) { return c.is_stranger(); });
  for (auto& connection : connections_) {
    if (connection.closing || !connection.admitted()) continue;
    last_word(connection);
    connection.close();
  }
  serve_until([this] { return connections_.empty(); }, kLastWordTime);
}

void PeerServer::serve_until(const std::function<bool()>& is_over, Milliseconds at_most) {
  const auto deadline = Deadline::after(at_most);
  settle();
  while (!is_over() && !deadline.passed()) {
    wait(nullptr, deadline.left());
    settle();
  }
}

}  // namespace troika::cluster
