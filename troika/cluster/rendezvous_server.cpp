#include "troika/cluster/rendezvous_server.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <list>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "troika/base/log.h"
#include "troika/base/text.h"
#include "troika/cluster/socket.h"

namespace troika::cluster {

namespace {

constexpr Milliseconds kPartingTime{1000};
constexpr size_t kMaxHelloFrame = 1 << 16;

struct Connection {
  Descriptor socket;
  Decoder in;
  std::string out;
  size_t out_sent = 0;  // of out
  bool greeted = false;
  int rank = -1;         // -1 until admitted
  bool left = false;     // said so; its end is no loss
  bool closing = false;  // refused: nothing it says counts any more
  bool shut = false;     // we have sent our last byte
  bool ended = false;
  std::string reason;  // why it ended
};

struct WaitingGet {
  Connection* connection;
  uint64_t call;
};

// All state is the serving thread's own.
class Service {
 public:
  Service(Descriptor listener, Roster roster)
      : listener_(std::move(listener)), roster_(std::move(roster)) {}

  void run(const Waker& stop);
  void finish(bool bye);

 private:
  void accept_all();
  void read(Connection& from);
  void handle(Connection& from, const Frame& frame);
  void handle_hello(Connection& from, const Frame& frame);
  void handle_set(const std::string& key, const std::string& value);
  void handle_add(Connection& from, const Frame& frame);
  void refuse(Connection& whom, const Refusal& why);
  void fail_all(const Refusal& why);
  void let_host_leave();
  void part_from(Connection& gone);
  void flush(Connection& to);
  // Flushes everybody and mourns the ended until nothing more happens.
  void settle();
  void wait(const Waker* stop, Milliseconds at_most);
  Milliseconds patience() const;
  void send(Connection& to, const Frame& frame) { to.out += encode(frame); }

  Descriptor listener_;
  Roster roster_;
  bool gathering_ = true;
  std::optional<Refusal> failed_;
  std::list<Connection> connections_;
  std::map<std::string, std::string> keys_;
  std::multimap<std::string, WaitingGet> waiting_;
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
    tune(socket.get());
    connections_.emplace_back().socket = std::move(socket);
    connections_.back().out = kServerGreeting;
  }
}

void Service::read(Connection& from) {
  std::string bytes;
  std::string reason;
  if (!receive(from.socket.get(), bytes, reason)) {
    from.ended = true;
    from.reason = reason;
  }
  if (from.closing) return;
  from.in.feed(bytes);
  if (!from.greeted) {
    const auto greeting = from.in.raw(kClientGreeting.size());
    if (!greeting) return;
    from.greeted = true;
    // A stranger, say a port scanner.
    if (*greeting != kClientGreeting) from.ended = true;
  }
  try {
    while (!from.closing && !(from.ended && from.rank < 0)) {
      const auto frame = from.in.next(from.rank < 0 ? kMaxHelloFrame : kMaxFrame);
      if (!frame) break;
      handle(from, *frame);
    }
  } catch (const Error& problem) {
    from.ended = true;
    from.reason = problem.what();
  }
}

void Service::handle(Connection& from, const Frame& frame) {
  if (from.rank < 0) {
    if (frame.message == Message::hello) {
      handle_hello(from, frame);
    } else {
      from.ended = true;
    }
    return;
  }
  switch (frame.message) {
    case Message::set:
      handle_set(frame.key, frame.value);
      send(from, {Message::value, frame.number});
      break;
    case Message::get:
      if (const auto found = keys_.find(frame.key); found != keys_.end()) {
        send(from, {Message::value, frame.number, "", found->second});
      } else if (first_loss_) {
        send(from, {Message::failed, frame.number, "", to_json(*first_loss_)});
      } else {
        waiting_.emplace(frame.key, WaitingGet{&from, frame.number});
      }
      break;
    case Message::add:
      handle_add(from, frame);
      break;
    case Message::leave:
      from.left = true;
      if (from.rank == 0) {
        host_leave_ = frame.number;
      } else {
        send(from, {Message::value, frame.number});
      }
      break;
    default:
      from.ended = true;
      from.reason = "it sent what only a server sends";
  }
}

void Service::handle_hello(Connection& from, const Frame& frame) {
  const auto hello = hello_from_json(frame.value);
  if (!hello) {
    from.ended = true;
    return;
  }
  if (failed_) return refuse(from, *failed_);
  if (const auto verdict = roster_.admit(*hello)) {
    refuse(from, verdict->refusal);
    if (verdict->for_all) fail_all(verdict->refusal);
    return;
  }
  from.rank = hello->rank;
  if (!roster_.complete()) return;
  gathering_ = false;
  for (auto& connection : connections_) {
    if (connection.rank >= 0) send(connection, {Message::welcome});
  }
}

void Service::handle_set(const std::string& key, const std::string& value) {
  keys_[key] = value;
  const auto [begin, end] = waiting_.equal_range(key);
  for (auto it = begin; it != end; ++it) {
    send(*it->second.connection, {Message::value, it->second.call, "", value});
  }
  waiting_.erase(begin, end);
}

void Service::handle_add(Connection& from, const Frame& frame) {
  const auto found = keys_.find(frame.key);
  const auto old = found == keys_.end() ? int64_t{0} : parse_int(found->second);
  const auto delta = parse_int(frame.value);
  int64_t sum = 0;
  if (!old || !delta || __builtin_add_overflow(*old, *delta, &sum)) {
    const Refusal why{ErrorKind::usage,
                      {.what = fmt::format("cannot add to key \"{}\"", frame.key),
                       .got = old ? "a sum beyond 64 bits" : "a value that is no integer",
                       .expected = "a 64-bit integer"}};
    send(from, {Message::failed, frame.number, "", to_json(why)});
    return;
  }
  handle_set(frame.key, std::to_string(sum));
  send(from, {Message::value, frame.number, "", std::to_string(sum)});
}

void Service::refuse(Connection& whom, const Refusal& why) {
  send(whom, {Message::refused, 0, "", to_json(why)});
  whom.closing = true;
}

void Service::fail_all(const Refusal& why) {
  gathering_ = false;
  failed_ = why;
  for (auto& connection : connections_) {
    if (connection.rank >= 0 && !connection.closing) refuse(connection, why);
  }
}

void Service::let_host_leave() {
  if (!host_leave_) return;
  Connection* host = nullptr;
  for (auto& connection : connections_) {
    if (connection.rank > 0 && !connection.left) return;
    if (connection.rank == 0) host = &connection;
  }
  if (host) send(*host, {Message::value, *host_leave_});
  host_leave_.reset();
}

void Service::flush(Connection& to) {
  while (!to.out.empty() && !to.ended) {
    const ssize_t sent = ::send(to.socket.get(), to.out.data() + to.out_sent,
                                to.out.size() - to.out_sent, MSG_NOSIGNAL);
    if (sent >= 0) {
      to.out_sent += static_cast<size_t>(sent);
      if (to.out_sent < to.out.size()) continue;
      to.out.clear();
      to.out_sent = 0;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return;
    } else if (errno != EINTR) {
      to.ended = true;
      to.reason = system_reason(errno);
    }
  }
  if (to.closing && !to.ended && !std::exchange(to.shut, true)) {
    // Half closed: a full close could destroy the refusal on its way.
    ::shutdown(to.socket.get(), SHUT_WR);
  }
}

void Service::part_from(Connection& gone) {
  std::erase_if(waiting_, [&](const auto& entry) { return entry.second.connection == &gone; });
  if (gone.rank < 0 || gone.left || gone.closing) return;
  if (gathering_) return fail_all(roster_.gone(gone.rank, gone.reason));
  const std::string why = fmt::format("{} ({})", gone.reason, roster_.who(gone.rank));
  if (!first_loss_) {
    first_loss_ =
        Refusal{ErrorKind::peer, {.what = fmt::format("rank {} was lost", gone.rank), .got = why}};
  }
  for (auto& connection : connections_) {
    if (connection.rank >= 0 && !connection.ended) {
      send(connection, {Message::lost, static_cast<uint64_t>(gone.rank), "", why});
    }
  }
  for (const auto& [key, get] : waiting_) {
    send(*get.connection, {Message::failed, get.call, "", to_json(*first_loss_)});
  }
  waiting_.clear();
}

void Service::settle() {
  while (true) {
    let_host_leave();
    for (auto& connection : connections_) flush(connection);
    const auto gone = std::ranges::find_if(connections_, &Connection::ended);
    if (gone == connections_.end()) return;
    std::list<Connection> grave;
    grave.splice(grave.begin(), connections_, gone);
    part_from(grave.front());
  }
}

void Service::finish(bool bye) {
  listener_.reset();
  std::erase_if(connections_, [](const Connection& c) { return c.rank < 0 && !c.closing; });
  for (auto& connection : connections_) {
    if (connection.closing) continue;
    if (bye && !connection.left) send(connection, {Message::bye});
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
