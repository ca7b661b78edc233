#include "troika/cluster/server_connection.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <utility>

#include "troika/base/error.h"
#include "troika/cluster/socket.h"

namespace troika::cluster {

ServerConnection::ServerConnection(std::unique_ptr<RendezvousServer> server, int port,
                                   Connected connected)
    : server_(std::move(server)),
      port_(port),
      socket_(std::move(connected.socket)),
      in_(std::move(connected.in)),
      reader_([this] { read_until_stopped(); }) {}

ServerConnection::~ServerConnection() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    if (left_ && server_) server_->say_bye();
  }
  wake_.wake();
  reader_.join();
  ::shutdown(socket_.get(), SHUT_RDWR);
}

Error ServerConnection::gone_error(const std::string& purpose) const {
  return Error("cluster", ErrorKind::peer,
               {.what = fmt::format("rank 0, which holds the keys, {} while {}",
                                    bye_ ? "left" : "was lost", purpose),
                .got = *cut_});
}

std::string ServerConnection::call(Message message, const std::string& key,
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

void ServerConnection::leave(Deadline deadline) {
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

void ServerConnection::listen(LossListener listener) {
  {
    const std::lock_guard lock(mutex_);
    TROIKA_CHECK(!left_, "rendezvous used after leave()");
    listeners_.push_back({std::move(listener)});
  }
  wake_.wake();
}

void ServerConnection::read_until_stopped() {
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

void ServerConnection::take_in(const Frame& frame) {
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

void ServerConnection::cut(const std::string& reason, bool lost) {
  const std::lock_guard lock(mutex_);
  if (bye_) return;
  bye_ = !lost;
  const bool known = lost && !losses_.empty() && losses_.back().rank == 0;
  if (lost && !known) losses_.push_back({0, reason});
  cut_ = reason;
  answered_.notify_all();
}

void ServerConnection::tell_listeners() {
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

}  // namespace troika::cluster
