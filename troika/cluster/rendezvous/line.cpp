#include "troika/cluster/rendezvous/line.h"

#include <algorithm>
#include <utility>

namespace troika::cluster {

namespace {

constexpr std::chrono::seconds kPartingTime{1};

net::TcpOptions options_of(const Line::Options& options, const RunSecret& secret) {
  net::TcpOptions result{
      .name = unique_name(), .secret = role_key(secret, Role::relay), .listen = {}};
  // Relays and their ranks connect over the loopback interface.
  if (options.may_relay) result.listen.push_back({"127.0.0.1", 0});
  return result;
}

}  // namespace

Line::Line(const Options& options, const RunSecret& secret)
    : server_(options.server), endpoint_(options_of(options, secret)) {
  net::act_on(endpoint_, [&] {
    endpoint_.listen_to_peers([this](const net::PeerChange& change) { note(change); });
    endpoint_.handle(
        kToRank, kMaxMessage,
        [this](const std::string& peer, const std::string& message) { take(peer, message); });
    if (!options.may_relay) return;
    relay_ = std::make_unique<Relay>(endpoint_, server_, options.world_size);
    relay_->start();
    endpoint_.accept_while([relay = relay_.get()] { return relay->has_room(); });
  });
}

Line::~Line() {
  if (relay_) {
    endpoint_.run_until([this] { return relay_->is_alone(); }, kPartingTime);
    relay_for_nobody();
  }
  net::act_on(endpoint_, [this] {
    endpoint_.listen_to_peers({});
    endpoint_.handle(kToRank, 0, {});
    // Disconnects, because the endpoint's destructor would wait for a peer that does not read.
    endpoint_.disconnect(peer_);
  });
}

int Line::relay_port() const {
  return endpoint_.addresses().empty() ? 0 : endpoint_.addresses().front().port;
}

void Line::relay_for_nobody() {
  net::act_on(endpoint_, [this] {
    endpoint_.stop_listening();
    endpoint_.accept_while({});
    if (!relay_) return;
    relay_->stop();
    relay_.reset();
  });
}

std::optional<net::DialFailure> Line::go_to(const std::string& peer, const net::Address& address,
                                            const net::Secret& secret, Deadline deadline) {
  {
    const std::lock_guard lock(mutex_);
    ends_.erase(peer);
  }
  const auto failure = endpoint_.try_connect(peer, address, secret, {deadline});
  if (failure) return failure;
  std::string before;
  net::act_on(endpoint_, [&] {
    const std::lock_guard lock(mutex_);
    before = std::exchange(peer_, peer);
    frames_.clear();
    has_told_end_ = false;
  });
  if (before != peer) endpoint_.disconnect(before);
  return std::nullopt;
}

void Line::give_to(Sink sink) {
  net::act_on(endpoint_, [&] {
    sink_ = std::move(sink);
    if (!sink_) return;
    std::deque<Frame> frames;
    {
      const std::lock_guard lock(mutex_);
      frames.swap(frames_);
    }
    std::erase_if(frames, sink_);
    const std::lock_guard lock(mutex_);
    frames_ = std::move(frames);
  });
}

void Line::note(const net::PeerChange& change) {
  const bool is_server = change.peer == server_;
  if (relay_ && !is_server) return relay_->note(change);
  if (change.is_up) return;
  {
    const std::lock_guard lock(mutex_);
    ends_[change.peer] = change.reason;
    changed_.notify_one();
  }
  if (relay_) relay_->lose_server(change.reason);
}

void Line::take(const std::string& peer, const std::string& message) {
  {
    const std::lock_guard lock(mutex_);
    if (peer != peer_) return;
  }
  try {
    for (std::string_view bytes = message; !bytes.empty();) {
      Frame frame = take_frame(bytes);
      if (frame.message == Message::welcome) endpoint_.stop_listening();
      if ((relay_ && relay_->pass_on(frame)) || (sink_ && sink_(frame))) continue;
      const std::lock_guard lock(mutex_);
      frames_.push_back(std::move(frame));
      changed_.notify_one();
    }
  } catch (const Error& broken) {
    endpoint_.disconnect(peer);
    const std::lock_guard lock(mutex_);
    ends_[peer] = broken.what();
  }
}

void Line::post(std::string frames) {
  std::string peer;
  {
    const std::lock_guard lock(mutex_);
    peer = peer_;
  }
  net::send_owned(endpoint_, peer, kToServer,
                  std::make_shared<const std::string>(std::move(frames)));
}

void Line::wake() {
  const std::lock_guard lock(mutex_);
  is_woken_ = true;
  changed_.notify_one();
}

const std::string* Line::end_of_peer() const {
  const auto end = ends_.find(peer_);
  return end == ends_.end() ? nullptr : &end->second;
}

std::optional<Frame> Line::next(Deadline deadline) {
  std::unique_lock lock(mutex_);
  // Reports an end only once, so that later calls wait again.
  const auto has_news = [this] {
    return !frames_.empty() || std::exchange(is_woken_, false) ||
           (end_of_peer() && !std::exchange(has_told_end_, true));
  };
  if (!changed_.wait_until(lock, deadline.at(), has_news) || frames_.empty()) return std::nullopt;
  Frame frame = std::move(frames_.front());
  frames_.pop_front();
  return frame;
}

std::optional<std::string> Line::ended() {
  const std::lock_guard lock(mutex_);
  const auto* reason = end_of_peer();
  return reason && frames_.empty() ? std::optional(*reason) : std::nullopt;
}

}  // namespace troika::cluster
