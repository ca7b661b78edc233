#include "troika/cluster/rendezvous/service.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace troika::cluster {

namespace {

// For a hello, and for the peer to close its side at the end of a connection.
constexpr std::chrono::seconds kHelloTime{20};
// Peers waiting to be admitted or redirected; further connections are not accepted yet.
constexpr ptrdiff_t kMostNewcomers = 64;
// The maximum bytes of small frames collected into one message.
constexpr size_t kMostTogether = size_t{32} << 10;

}  // namespace

void Service::start() {
  endpoint_.handle(kToServer, kMaxMessage,
                   [this](const std::string& name, std::string message) { take(name, message); });
  set_timer();
}

void Service::close_all() {
  for (auto& [name, peer] : peers_) {
    if (peer.admitted()) close(peer);
  }
}

void Service::stop() {
  flush();
  for (const auto& [name, peer] : std::exchange(peers_, {})) endpoint_.disconnect(name);
  endpoint_.handle(kToServer, 0, {});
  for (net::Ticket* timer : {&timer_, &flush_}) {
    if (*timer != 0) endpoint_.cancel(std::exchange(*timer, 0), net::Outcome::cancelled);
  }
}

Service::Peer& Service::peer(const std::string& name) {
  const auto [entry, is_new] = peers_.try_emplace(name);
  if (is_new) entry->second = {.name = name, .patience = endpoint_.now() + kHelloTime};
  return entry->second;
}

bool Service::has_room() const {
  return std::ranges::count_if(peers_, [](const auto& entry) {
           return !entry.second.admitted() && !entry.second.closing;
         }) < kMostNewcomers;
}

void Service::note(const net::PeerChange& change) {
  if (change.is_up) {
    peer(change.peer);
  } else if (auto node = peers_.extract(change.peer)) {
    Peer& gone = node.mapped();
    if (gone.reason.empty()) gone.reason = change.reason;
    part_from(gone);
  }
  go_on();
}

void Service::take(const std::string& name, const std::string& message) {
  Peer& from = peer(name);
  try {
    for (std::string_view frames = message; !frames.empty() && !from.closing;) {
      handle(from, take_frame(frames));
    }
  } catch (const Error& problem) {
    end(from, problem.what());
  }
  go_on();
}

void Service::send(const Peer& to, std::string_view frames) {
  if (!to.closing) post(to.name, kToRank, frames);
}

void Service::post(const std::string& peer, net::Channel channel, std::string_view frames) {
  std::string& out = out_[{peer, channel}];
  if (!out.empty() && out.size() + frames.size() > kMostTogether) {
    net::send_owned(endpoint_, peer, channel,
                    std::make_shared<const std::string>(std::exchange(out, {})));
  }
  out += frames;
  if (flush_ != 0) return;
  flush_ = endpoint_.after(net::Duration(0), [this] {
    flush_ = 0;
    flush();
  });
}

void Service::flush() {
  for (auto& [to, frames] : std::exchange(out_, {})) {
    net::send_owned(endpoint_, to.first, to.second,
                    std::make_shared<const std::string>(std::move(frames)));
  }
}

void Service::refuse(Peer& to, const Refusal& why) {
  send(to, {Message::refused, 0, "", to_json(why)});
  close(to);
}

void Service::close(Peer& peer) {
  if (std::exchange(peer.closing, true)) return;
  flush();
  endpoint_.part(peer.name, kHelloTime);
}

void Service::end(Peer& peer, const std::string& why) {
  peer.closing = true;
  peer.reason = why;
  // Deferred, because the caller still uses the peer.
  endpoint_.after(net::Duration(0),
                  [&endpoint = endpoint_, name = peer.name] { endpoint.disconnect(name); });
}

void Service::proceed() {
  const auto now = endpoint_.now();
  if (const auto at = due(); at && *at <= now) late();
  for (auto& [name, peer] : peers_) {
    if (!peer.admitted() && !peer.closing && peer.patience <= now) end(peer, "it stayed silent");
  }
  go_on();
}

void Service::go_on() {
  after_event();
  set_timer();
}

void Service::set_timer() {
  auto first = due();
  for (const auto& [name, peer] : peers_) {
    if (peer.admitted() || peer.closing) continue;
    if (!first || peer.patience < *first) first = peer.patience;
  }
  if (first == timer_at_ && (timer_ != 0) == first.has_value()) return;
  if (timer_ != 0) endpoint_.cancel(std::exchange(timer_, 0), net::Outcome::cancelled);
  timer_at_ = first;
  if (!first) return;
  timer_ = endpoint_.after(std::max(net::Duration(0), *first - endpoint_.now()), [this] {
    timer_ = 0;
    proceed();
  });
}

}  // namespace troika::cluster
