#include "troika/cluster/rendezvous_server.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <list>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "troika/base/log.h"
#include "troika/cluster/key_store.h"
#include "troika/cluster/peer.h"

namespace troika::cluster {

namespace {

constexpr Milliseconds kPartingTime{1000};
constexpr size_t kMaxHelloFrame = 1 << 16;

// All state is the serving thread's own.
class Service {
 public:
  Service(Descriptor listener, Roster roster)
      : listener_(std::move(listener)), roster_(std::move(roster)) {}

  void run(const Waker& stop);
  void finish(bool bye);

 private:
  void accept_all();
  void read(Peer& from);
  void handle(Peer& from, const Frame& frame);
  void handle_hello(Peer& from, const Frame& frame);
  void set(const std::string& key, const std::string& value);
  void get(Peer& from, const Frame& frame);
  void add(Peer& from, const Frame& frame);
  void tell_others(const Peer& than, const Frame& frame);
  void pass_answer_on(const Peer& from, const Frame& frame);
  void fail_all(const Refusal& why);
  void let_host_leave();
  void part_from(Peer& gone);
  // Flushes everybody and mourns the ended until nothing more happens.
  void settle();
  void wait(const Waker* stop, Milliseconds at_most);
  Milliseconds patience() const;

  Descriptor listener_;
  Roster roster_;
  bool gathering_ = true;
  std::optional<Refusal> failed_;
  std::list<Peer> connections_;
  KeyStore keys_;
  std::optional<Refusal> first_loss_;
  std::optional<uint64_t> host_leave_;  // rank 0's call, answered when it is the last
};

Milliseconds Service::patience() const {
  const bool counts = gathering_ && roster_.deadline();
  return counts ? roster_.deadline()->left() : Milliseconds::max();
}

void Service::run(const Waker& stop) {
  while (true) {
    wait(&stop, patience());
    pollfd woken{stop.fd(), POLLIN, 0};
    if (::poll(&woken, 1, 0) > 0) return;
    if (gathering_ && roster_.deadline() && roster_.deadline()->passed()) fail_all(roster_.late());
    settle();
  }
}

// One round of poll(): accepts and reads whatever is there.
void Service::wait(const Waker* stop, Milliseconds at_most) {
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

void Service::accept_all() {
  while (true) {
    Descriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      if (errno == EINTR || errno == ECONNABORTED) continue;
      const std::string reason = system_reason(errno);
      listener_.reset();  // it would stay readable for ever
      if (gathering_) {
        fail_all({ErrorKind::failure,
                  {.what = "rank 0 cannot accept more connections",
                   .got = reason,
                   .hint = "raise the limit on open files (ulimit -n)"}});
      } else {
        log::warn("[cluster] the control connection accepts no more: {}", reason);
      }
      return;
    }
    connections_.emplace_back(std::move(socket));
  }
}

void Service::read(Peer& from) {
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

void Service::handle(Peer& from, const Frame& frame) {
  if (!from.admitted()) {
    if (frame.message == Message::hello) return handle_hello(from, frame);
    from.ended = true;
    return;
  }
  switch (frame.message) {
    case Message::set:
      set(frame.key, frame.value);
      return from.send({Message::value, frame.number});
    case Message::get:
      return get(from, frame);
    case Message::add:
      return add(from, frame);
    case Message::leave:
      from.left = true;
      tell_others(from, {Message::left, static_cast<uint64_t>(from.rank), "", frame.value});
      if (from.rank != 0) return from.send({Message::value, frame.number});
      host_leave_ = frame.number;
      return;
    case Message::ask:
      return tell_others(from,
                         {Message::ask, static_cast<uint64_t>(from.rank), frame.key, frame.value});
    case Message::answer:
      return pass_answer_on(from, frame);
    case Message::fail:
      from.ended = true;
      from.reason = frame.value;
      return;
    default:
      from.ended = true;
      from.reason = "it sent what only a server sends";
  }
}

void Service::handle_hello(Peer& from, const Frame& frame) {
  const auto hello = hello_from_json(frame.value);
  if (!hello) {
    from.ended = true;
    return;
  }
  if (failed_) return from.refuse(*failed_);
  if (const auto verdict = roster_.admit(*hello)) {
    from.refuse(verdict->refusal);
    if (verdict->for_all) fail_all(verdict->refusal);
    return;
  }
  from.rank = hello->rank;
  if (!roster_.complete()) return;
  gathering_ = false;
  for (auto& connection : connections_) {
    if (connection.admitted()) connection.send({Message::welcome});
  }
}

void Service::set(const std::string& key, const std::string& value) {
  for (const auto& [peer, call] : keys_.set(key, value)) {
    peer->send({Message::value, call, "", value});
  }
}

void Service::get(Peer& from, const Frame& frame) {
  if (const std::string* value = keys_.find(frame.key)) {
    from.send({Message::value, frame.number, "", *value});
  } else if (first_loss_) {
    from.send({Message::failed, frame.number, "", to_json(*first_loss_)});
  } else {
    keys_.wait(frame.key, {&from, frame.number});
  }
}

void Service::add(Peer& from, const Frame& frame) {
  const auto sum = keys_.sum(frame.key, frame.value);
  if (const auto* refusal = std::get_if<Refusal>(&sum)) {
    return from.send({Message::failed, frame.number, "", to_json(*refusal)});
  }
  const std::string text = std::to_string(std::get<int64_t>(sum));
  set(frame.key, text);
  from.send({Message::value, frame.number, "", text});
}

void Service::tell_others(const Peer& than, const Frame& frame) {
  for (auto& connection : connections_) {
    const bool listens = connection.admitted() && connection.talks() && !connection.left;
    if (listens && &connection != &than) connection.send(frame);
  }
}

void Service::pass_answer_on(const Peer& from, const Frame& frame) {
  for (auto& connection : connections_) {
    if (connection.admitted() && static_cast<uint64_t>(connection.rank) == frame.number) {
      connection.send({Message::answer, static_cast<uint64_t>(from.rank), frame.key, frame.value});
    }
  }
}

void Service::fail_all(const Refusal& why) {
  gathering_ = false;
  failed_ = why;
  for (auto& connection : connections_) {
    if (connection.admitted() && !connection.closing) connection.refuse(why);
  }
}

void Service::let_host_leave() {
  if (!host_leave_) return;
  Peer* host = nullptr;
  for (auto& connection : connections_) {
    if (connection.rank > 0 && !connection.left) return;
    if (connection.rank == 0) host = &connection;
  }
  if (host) host->send({Message::value, *host_leave_});
  host_leave_.reset();
}

void Service::part_from(Peer& gone) {
  keys_.forget(&gone);
  if (!gone.admitted() || gone.left || gone.closing) return;
  if (gathering_) return fail_all(roster_.gone(gone.rank, gone.reason));
  const std::string why = fmt::format("{} ({})", gone.reason, roster_.who(gone.rank));
  if (!first_loss_) {
    first_loss_ =
        Refusal{ErrorKind::peer, {.what = fmt::format("rank {} was lost", gone.rank), .got = why}};
  }
  tell_others(gone, {Message::lost, static_cast<uint64_t>(gone.rank), "", why});
  for (const auto& [peer, call] : keys_.take_waiting()) {
    peer->send({Message::failed, call, "", to_json(*first_loss_)});
  }
}

void Service::settle() {
  while (true) {
    let_host_leave();
    for (auto& connection : connections_) connection.flush();
    const auto gone = std::ranges::find_if(connections_, &Peer::ended);
    if (gone == connections_.end()) return;
    std::list<Peer> grave;
    grave.splice(grave.begin(), connections_, gone);
    part_from(grave.front());
  }
}

void Service::finish(bool bye) {
  listener_.reset();
  std::erase_if(connections_, [](const Peer& c) { return !c.admitted() && !c.closing; });
  for (auto& connection : connections_) {
    if (connection.closing) continue;
    if (bye && !connection.left) connection.send({Message::bye});
    connection.closing = true;
  }
  const auto deadline = Deadline::after(kPartingTime);
  settle();
  while (!connections_.empty() && !deadline.passed()) {
    wait(nullptr, deadline.left());
    settle();
  }
}

}  // namespace

RendezvousServer::RendezvousServer(Descriptor listener, Roster roster)
    : thread_([this, service = Service(std::move(listener), std::move(roster))]() mutable {
        service.run(stop_);
        service.finish(bye_);
      }) {}

RendezvousServer::~RendezvousServer() {
  stop_.wake();
  thread_.join();
}

}  // namespace troika::cluster
