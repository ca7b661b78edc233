#include "troika/net/peer_link.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "troika/base/error.h"

namespace troika::net {

PeerLink::PeerLink(std::string peer, Poller& poller, const Handlers& handlers,
                   std::function<void(const PeerChange&)> changed)
    : peer_(std::move(peer)),
      poller_(poller),
      changed_(std::move(changed)),
      mailbox_(peer_, handlers, [this](const FrameHead& head) {
        queue_.add_control(head);
        pump();
      }) {}

PeerLink::~PeerLink() {
  for (const auto& socket : sockets_) {
    if (socket) poller_.remove(socket->fd.get());
  }
}

bool PeerLink::misses(const PairId& pair, int index) const {
  return !pair_ || (pair_ == pair && !sockets_[static_cast<size_t>(index)]);
}

void PeerLink::adopt(const PairId& pair, int index, Descriptor socket, const SessionKeys& keys,
                     Protection protection) {
  const auto i = static_cast<size_t>(index);
  if (!pair_) {
    pair_ = pair;
    sockets_.resize(static_cast<size_t>(pair.sockets));
  }
  const int fd = socket.get();
  sockets_[i] = std::make_shared<Socket>(std::move(socket), keys, protection);
  poller_.add(
      fd, [this, i](uint32_t events) { ready(i, events); }, /*is_hot=*/true);
  is_up_ = std::ranges::all_of(sockets_, [](const auto& s) { return s != nullptr; });
  if (!is_up_) return;
  left_ = parts_ = said_bye_ = false;
  changed_({peer_, true, {}});
  pump();
}

void PeerLink::send(std::shared_ptr<Outgoing> message) {
  queue_.add(std::move(message));
  pump();
}

void PeerLink::release_sends() {
  if (--holds_ == 0 && pumps_again_) pump();
}

bool PeerLink::cancel(Ticket ticket, Outcome why) {
  const auto sent = queue_.cancel(ticket, why);
  if (sent == SendQueue::Cancelled::must_end) {
    end("a message to it was given up");
  }
  if (sent != SendQueue::Cancelled::unknown) return true;
  const auto buffer = mailbox_.cancel(ticket, why);
  if (!buffer) return false;
  for (const auto& socket : sockets_) {
    if (socket) socket->reader.forget(*buffer);
  }
  return true;
}

void PeerLink::end(const std::string& reason) {
  if (!pair_) return;
  poller_.count_progress();
  const bool was_up = std::exchange(is_up_, false);
  pair_.reset();
  // Callers inside a function of a socket still hold a shared_ptr to it.
  for (const auto& socket : std::exchange(sockets_, {})) {
    if (!socket) continue;
    poller_.remove(socket->fd.get());
    socket->fd.reset();
    socket->writer.clear();
    socket->reader.keep_read_ahead();
  }
  const std::string why =
      left_ ? fmt::format("{} has left", peer_) : fmt::format("{} is gone: {}", peer_, reason);
  queue_.fail(why);
  mailbox_.fail(why);
  if (was_up) changed_({peer_, false, left_ ? "it has left" : reason});
}

bool PeerLink::is_silent() const {
  return queue_.is_empty() &&
         std::ranges::all_of(sockets_, [](const auto& s) { return !s || s->writer.is_empty(); });
}

PairId PeerLink::part() {
  parts_ = true;
  pump();
  return pair_.value_or(PairId{});
}

void PeerLink::say_bye() {
  if (!is_up_) return end("it was given up");
  if (std::exchange(said_bye_, true)) return;
  queue_.add_control({.kind = FrameKind::bye});
  pump();
  for (const auto& socket : sockets_) ::shutdown(socket->fd.get(), SHUT_WR);
}

// With several sockets, the first carries everything but data, so that other frames do not wait for
// data.
Carries PeerLink::carries(size_t index) const {
  if (sockets_.size() == 1) return Carries::all;
  return index == 0 ? Carries::all_but_data : Carries::data;
}

char* PeerLink::begin(const FrameHead& head) {
  poller_.count_progress();
  const bool has_payload = head.kind == FrameKind::message || head.kind == FrameKind::data;
  return has_payload ? mailbox_.begin(head) : nullptr;
}

void PeerLink::end(const FrameHead& head) {
  poller_.count_progress();
  // A callback has ended the connection.
  if (!pair_) throw Error("net", ErrorKind::peer, {.what = "the connection was ended here"});
  switch (head.kind) {
    case FrameKind::message:
    case FrameKind::data:
      return mailbox_.end(head);
    case FrameKind::announce:
      return mailbox_.announce(head);
    case FrameKind::grant:
      queue_.grant(head.id);
      return pump();
    case FrameKind::refuse:
      return queue_.refuse(head.id);
    case FrameKind::credit:
      queue_.give_credit(head.size);
      return pump();
    case FrameKind::hold:
      queue_.hold();
      return pump();
    case FrameKind::bye:
      left_ = true;
      return;
  }
}

bool PeerLink::is_present(size_t index, const std::shared_ptr<Socket>& socket) const {
  return index < sockets_.size() && sockets_[index] == socket;
}

void PeerLink::ready(size_t index, uint32_t events) {
  const auto socket = sockets_[index];
  if (events & ~static_cast<uint32_t>(EPOLLOUT)) read(index);
  // A callback may have ended the connection, and even made a new one.
  if (!is_present(index, socket) || (events & EPOLLOUT) == 0) return;
  socket->takes = true;
  pump();
}

void PeerLink::read(size_t index) {
  const auto socket = sockets_[index];
  std::string reason;
  try {
    if (socket->reader.read(socket->fd.get(), *this, reason)) return;
    if (!is_present(index, socket)) return;
    socket->has_ended = true;
    poller_.remove(socket->fd.get());
    const bool all = std::ranges::all_of(sockets_, [](const auto& s) { return s && s->has_ended; });
    // A peer that leaves closes its sockets one after another. Wait for all of them.
    if (left_ && !all) return;
    drain_others(index);
  } catch (const Error& broken) {
    reason = broken.what();
  }
  if (is_present(index, socket)) end(reason);
}

// Delivers bytes that arrived on the other sockets before the end of this one.
void PeerLink::drain_others(size_t index) {
  const auto sockets = sockets_;
  for (size_t i = 0; i < sockets.size(); ++i) {
    const auto& other = sockets[i];
    if (i == index || !other || other->has_ended) continue;
    std::string unused;
    while (other->fd && wait_for(other->fd.get(), POLLIN, Deadline::after(Duration(0))) &&
           other->reader.read(other->fd.get(), *this, unused)) {
    }
  }
}

void PeerLink::pump() {
  pumps_again_ = true;
  // When called from a completion, the loop that runs the completion also sends the new message.
  if (!is_up_ || is_pumping_ || holds_ > 0) return;
  is_pumping_ = true;
  while (is_up_ && std::exchange(pumps_again_, false)) {
    for (size_t i = 0; i < sockets_.size() && is_up_; ++i) pump(i);
  }
  is_pumping_ = false;
  if (parts_ && is_up_ && is_silent()) say_bye();
}

void PeerLink::pump(size_t index) {
  const auto socket = sockets_[index];
  std::vector<OutFrame> written;
  while (is_up_ && socket->takes) {
    while (!socket->writer.is_full()) {
      auto frame = queue_.next(carries(index));
      if (!frame) break;
      if (carries(index) != Carries::data) {
        if (const auto credit = mailbox_.take_credit()) socket->writer.add({*credit});
      }
      socket->writer.add(std::move(*frame));
    }
    if (socket->writer.is_empty()) break;
    std::string reason;
    // The end is not handled here: read() delivers what arrived before it and reports the reason.
    if (!socket->writer.flush(socket->fd.get(), written, reason)) return socket->writer.clear();
    socket->takes = socket->writer.is_empty();
    for (const OutFrame& frame : std::exchange(written, {})) queue_.wrote(frame);
  }
  if (socket->fd && std::exchange(socket->is_watched, !socket->takes) == socket->takes) {
    poller_.set_writes(socket->fd.get(), socket->is_watched);
  }
}

}  // namespace troika::net
