#include "troika/cluster/relay.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "troika/cluster/listen.h"
#include "troika/cluster/peer_server.h"
#include "troika/cluster/ranges.h"

namespace troika::cluster {

namespace {

constexpr Milliseconds kPartingTime{1000};

// All state is the serving thread's own.
class RelayService : public PeerServer {
 public:
  RelayService(RelayPort here, const RunSecret& secret, int world_size, Connected uplink)
      : PeerServer(std::move(here.listener),
                   net::ServerHandshake(secret.secret, listener_name("relay", here.port))),
        world_size_(world_size),
        uplink_(&connections().emplace_back(std::move(uplink.socket), std::move(uplink.session),
                                            std::move(uplink.in))) {}

  // Handles what came with the word that made this rank a relay.
  void start() { take_frames(*uplink_); }
  void finish();

 private:
  void handle(Peer& from, const Frame& frame) override;
  void part_from(Peer& gone) override;
  std::optional<Deadline> deadline() const override { return std::nullopt; }
  void late() override {}

  void handle_server(const Frame& frame);
  // Calls `act` for the ranks that are here.
  template <typename Act>
  void each_rank(const Act& act);
  void end_all(const Frame& last_word);

  const int world_size_;
  Peer* uplink_;                    // null when it has ended
  std::optional<Frame> last_word_;  // for all ranks, also those yet to come
};

template <typename Act>
void RelayService::each_rank(const Act& act) {
  for (auto& connection : connections()) {
    if (&connection != uplink_ && connection.admitted() && connection.talks()) act(connection);
  }
}

void RelayService::handle(Peer& from, const Frame& frame) {
  if (&from == uplink_) return handle_server(frame);
  if (!from.admitted()) {
    const auto hello =
        frame.message == Message::hello ? hello_from_json(frame.value) : std::nullopt;
    if (!hello || hello->rank < 0 || hello->rank >= world_size_)
      return from.end("it says no hello");
    from.rank = hello->rank;
  }
  if (last_word_) {
    from.send(*last_word_);
    return from.close();
  }
  // The server may be the one that does not answer: this tells that the relay does.
  if (frame.message == Message::ask) from.send({Message::answer, 0, frame.key, ""});
  uplink_->send({Message::relayed, static_cast<uint64_t>(from.rank), "", encode(frame)});
}

void RelayService::handle_server(const Frame& frame) {
  switch (frame.message) {
    case Message::relayed: {
      std::set<int> ranks;
      for_each_rank(frame.key, world_size_, [&](int rank) { ranks.insert(rank); });
      return each_rank([&](Peer& rank) {
        if (ranks.contains(rank.rank)) rank.send_encoded(frame.value);
      });
    }
    case Message::parted:
      return each_rank([&](Peer& rank) {
        if (static_cast<uint64_t>(rank.rank) == frame.number) rank.close();
      });
    case Message::welcome:
      stop_listening();
      return each_rank([&](Peer& rank) { rank.send(frame); });
    case Message::bye:
    case Message::refused:
      return end_all(frame);
    default:
      uplink_->end("it sent what only a rank sends");
  }
}

void RelayService::end_all(const Frame& last_word) {
  if (last_word_) return;
  last_word_ = last_word;
  each_rank([&](Peer& rank) {
    rank.send(last_word);
    rank.close();
  });
}

void RelayService::part_from(Peer& gone) {
  if (&gone == uplink_) {
    uplink_ = nullptr;
    return end_all({Message::bye, 1, "", gone.reason});
  }
  if (!gone.admitted() || !uplink_) return;
  uplink_->send({Message::parted, static_cast<uint64_t>(gone.rank), "", gone.reason});
}

void RelayService::finish() {
  const auto is_alone = [this] {
    return !uplink_ || std::ranges::none_of(connections(), [this](const Peer& peer) {
      return &peer != uplink_ && peer.admitted();
    });
  };
  serve_until(is_alone, kPartingTime);
  PeerServer::finish([](Peer&) {});
}

}  // namespace

RelayPort open_relay_port() {
  Listening here = try_listen_for("127.0.0.1", 0);
  return {std::move(here.socket), here.port};
}

Relay::Relay(RelayPort here, const RunSecret& secret, int world_size, Connected uplink)
    : thread_([this, service = std::make_unique<RelayService>(std::move(here), secret, world_size,
                                                              std::move(uplink))] {
        service->start();
        service->run(stop_);
        service->finish();
      }) {}

Relay::~Relay() {
  stop_.wake();
  thread_.join();
}

}  // namespace troika::cluster
