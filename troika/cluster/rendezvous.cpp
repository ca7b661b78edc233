#include "troika/cluster/rendezvous.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/cluster/connect.h"
#include "troika/cluster/rendezvous_server.h"
#include "troika/cluster/socket.h"

namespace troika::cluster {

namespace {

struct Loss {
  int rank;
  std::string reason;
};

struct Listener {
  Rendezvous::LossListener call;
  size_t next_loss = 0;
};

}  // namespace

struct Rendezvous::Connection {
  Connection(std::unique_ptr<RendezvousServer> server, int port, Connected connected);
  ~Connection();

  // Sends a call and waits for its answer; `purpose` ends the sentences of its errors.
  std::string call(Message message, const std::string& key, const std::string& value,
                   Deadline deadline, const std::string& purpose);
  void leave(Deadline deadline);
  void listen(LossListener listener);

  const std::unique_ptr<RendezvousServer> server_;  // rank 0 only
  const int port_;

 private:
  void read_until_stopped();
  void take_in(const Frame& frame);
  void cut(const std::string& reason, bool lost);
  void tell_listeners();
  Error gone_error(const std::string& purpose) const;

  const Descriptor socket_;
  Decoder in_;  // the reading thread's own
  Waker wake_;
  std::mutex send_mutex_;

  std::mutex mutex_;  // guards all below
  std::condition_variable answered_;
  std::map<uint64_t, std::optional<Frame>> calls_;
  uint64_t next_call_ = 0;
  std::vector<Loss> losses_;
  std::vector<Listener> listeners_;
  std::optional<std::string> cut_;  // why there is no server any more
  bool bye_ = false;                // rank 0 said so before
  bool left_ = false;
  bool stopping_ = false;

  std::thread reader_;
};

Rendezvous::Connection::Connection(std::unique_ptr<RendezvousServer> server, int port,
                                   Connected connected)
    : server_(std::move(server)),
      port_(port),
      socket_(std::move(connected.socket)),
      in_(std::move(connected.in)),
      reader_([this] { read_until_stopped(); }) {}

Rendezvous::Connection::~Connection() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    if (left_ && server_) server_->say_bye();
  }
  wake_.wake();
  reader_.join();
  ::shutdown(socket_.get(), SHUT_RDWR);
}

Error Rendezvous::Connection::gone_error(const std::string& purpose) const {
  return Error("cluster", ErrorKind::peer,
               {.what = fmt::format("rank 0, which holds the keys, {} while {}",
                                    bye_ ? "left" : "was lost", purpose),
                .got = *cut_});
}

std::string Rendezvous::Connection::call(Message message, const std::string& key,
                                         const std::string& value, Deadline deadline,
                                         const std::string& purpose) {
  uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    TROIKA_CHECK(!left_ || message == Message::leave, "rendezvous used after leave()");
    if (cut_) throw gone_error(purpose);
    number = next_call_++;
    calls_[number];
  }
  const auto late = [&] {
    return Error("cluster", ErrorKind::timeout,
                 {.what = fmt::format("the time is over while {}", purpose)});
  };
  try {
    const std::string bytes = encode({message, number, key, value});
    const std::lock_guard lock(send_mutex_);
    send_all(socket_.get(), bytes, deadline);
  } catch (const Error& error) {
    const std::lock_guard lock(mutex_);
    calls_.erase(number);
    if (error.kind() == ErrorKind::usage) throw;
    // Half a frame may be out: the connection is of no use any more.
    ::shutdown(socket_.get(), SHUT_RDWR);
    if (error.kind() == ErrorKind::timeout) throw late();
    if (!cut_) cut_ = "its connection closed";
    throw gone_error(purpose);
  }
  std::unique_lock lock(mutex_);
  const auto done = [&] { return calls_[number].has_value() || cut_; };
  const bool in_time = answered_.wait_until(lock, deadline.at(), done);
  const auto answer = std::move(calls_.extract(number).mapped());
  if (!in_time) throw late();
  if (!answer) throw gone_error(purpose);
  if (answer->message == Message::value) return answer->value;
  throw to_error(answer->value, message == Message::get ? purpose : "");
}

void Rendezvous::Connection::leave(Deadline deadline) {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(left_, true) || cut_) return;
  }
  try {
    call(Message::leave, "", "", deadline, "leaving");
  } catch (const Error&) {
    // Nobody to take leave of, or somebody who would not go first.
  }
}

void Rendezvous::Connection::listen(LossListener listener) {
  {
    const std::lock_guard lock(mutex_);
    TROIKA_CHECK(!left_, "rendezvous used after leave()");
    listeners_.push_back({std::move(listener)});
  }
  wake_.wake();
}

void Rendezvous::Connection::read_until_stopped() {
  std::string bytes, reason;
  bool open = true;
  while (true) {
    try {
      while (const auto frame = in_.next()) take_in(*frame);
      if (!open) cut(reason, true);
    } catch (const Error& broken) {
      cut(broken.what(), true);
      open = false;
    }
    tell_listeners();
    // poll() ignores negative descriptors: after the cut only wake_ counts.
    pollfd entries[] = {{wake_.fd(), POLLIN, 0}, {open ? socket_.get() : -1, POLLIN, 0}};
    if (::poll(entries, 2, -1) < 0) continue;
    if (entries[0].revents) {
      wake_.clear();
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
    }
    if (entries[1].revents) {
      bytes.clear();
      open = receive(socket_.get(), bytes, reason);
      in_.feed(bytes);
      // The server waits for our end before it is gone.
      if (!open) ::shutdown(socket_.get(), SHUT_RDWR);
    }
  }
}

void Rendezvous::Connection::take_in(const Frame& frame) {
  if (frame.message == Message::bye) return cut("it has ended", false);
  const std::lock_guard lock(mutex_);
  if (frame.message == Message::lost) {
    losses_.push_back({static_cast<int>(frame.number), frame.value});
    return;
  }
  // Calls that ran out of time are no longer here.
  if (const auto call = calls_.find(frame.number); call != calls_.end()) {
    call->second = frame;
    answered_.notify_all();
  }
}

void Rendezvous::Connection::cut(const std::string& reason, bool lost) {
  const std::lock_guard lock(mutex_);
  if (bye_) return;
  bye_ = !lost;
  const bool known = lost && !losses_.empty() && losses_.back().rank == 0;
  if (lost && !known) losses_.push_back({0, reason});
  cut_ = reason;
  answered_.notify_all();
}

void Rendezvous::Connection::tell_listeners() {
  while (true) {
    LossListener call;
    Loss loss;
    {
      const std::lock_guard lock(mutex_);
      if (left_ || stopping_) return;
      for (auto& listener : listeners_) {
        if (listener.next_loss == losses_.size()) continue;
        loss = losses_[listener.next_loss++];
        call = listener.call;
        break;
      }
    }
    if (!call) return;
    call(loss.rank, loss.reason);
  }
}

Rendezvous::Rendezvous(std::unique_ptr<Connection> connection)
    : connection_(std::move(connection)) {}
Rendezvous::~Rendezvous() = default;

std::shared_ptr<Rendezvous> Rendezvous::join(const Environment& environment, Deadline deadline) {
  const bool alone = environment.world_size == 1;
  if (!alone && (environment.master_address.empty() || environment.master_port == 0)) {
    throw Error(
        "cluster", ErrorKind::usage,
        {.what = "the ranks have no place to meet",
         .got = describe(environment),
         .expected = "MASTER_ADDR and MASTER_PORT",
         .hint = "set both, the same on all ranks, to the machine of rank 0 and a free port"});
  }
  // Rank 0 need not reach itself by the name that the others know it by.
  const bool by_name = environment.rank != 0 || environment.master_address == "::1";
  const std::string address = by_name ? environment.master_address : "127.0.0.1";
  int port = environment.master_port;
  std::unique_ptr<RendezvousServer> server;
  if (environment.rank == 0) {
    const auto& name = alone ? address : environment.master_address;
    Descriptor listener = listen_at(name, port);
    port = port_of(listener);
    server = std::make_unique<RendezvousServer>(
        std::move(listener),
        Roster(environment.world_size, environment.run_id, fmt::format("{}:{}", name, port)));
  }
  Connected connected = connect_to_server(environment, address, port, deadline);
  return std::shared_ptr<Rendezvous>(
      new Rendezvous(std::make_unique<Connection>(std::move(server), port, std::move(connected))));
}

void Rendezvous::set(const std::string& key, const std::string& value, Deadline deadline) {
  connection_->call(Message::set, key, value, deadline, fmt::format("setting key \"{}\"", key));
}

std::string Rendezvous::get(const std::string& key, Deadline deadline) {
  return connection_->call(Message::get, key, "", deadline,
                           fmt::format("waiting for key \"{}\"", key));
}

int64_t Rendezvous::add(const std::string& key, int64_t delta, Deadline deadline) {
  const auto sum = connection_->call(Message::add, key, std::to_string(delta), deadline,
                                     fmt::format("adding to key \"{}\"", key));
  return parse_int(sum).value();
}

void Rendezvous::on_peer_lost(LossListener listener) {
  connection_->listen(std::move(listener));
}

void Rendezvous::leave(Deadline deadline) {
  connection_->leave(deadline);
}

int Rendezvous::port() const {
  return connection_->port_;
}

}  // namespace troika::cluster
