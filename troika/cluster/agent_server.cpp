#include "troika/cluster/agent_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "troika/cluster/peer_server.h"
#include "troika/cluster/port.h"

namespace troika::cluster {

namespace {

// A launch that was told to stop may also wait for the kernel; and a machine that has lost its
// power is noticed after half a minute (net::tune() in socket.h), better than by this.
constexpr Milliseconds kStopSlack{40'000};

RoundRules rules_of(const LaunchOptions& options) {
  return {.min_nodes = options.elastic->min_nodes,
          .max_nodes = options.num_nodes,
          .max_restarts = options.max_restarts,
          .last_call_timeout = options.elastic->last_call_timeout,
          .join_timeout = options.elastic->join_timeout,
          .stop_timeout = options.shutdown_timeout + options.settle_time + kStopSlack};
}

// A peer's `rank` is the agent's number here.
class RoundService : public PeerServer {
 public:
  RoundService(net::Descriptor listener, net::ServerHandshake handshake,
               const LaunchOptions& options, const AgentHello& host, const std::string& address)
      : PeerServer(std::move(listener), std::move(handshake)),
        rounds_(
            rules_of(options), host,
            [address, port = options.master_port,
             run_id = options.elastic->id.empty() ? unique_run_id() : options.elastic->id] {
              return LaunchPlace{
                  .address = address, .port = port != 0 ? port : free_port(), .run_id = run_id};
            },
            [this](int agent, const Frame& frame) { send(agent, frame); }) {}

 private:
  void send(int agent, const Frame& frame) {
    const auto peer = std::ranges::find(connections(), agent, &Peer::rank);
    if (peer == connections().end() || peer->closing) return;
    peer->send(frame);
    if (frame.message == Message::refused || frame.message == Message::over) peer->close();
  }

  void handle(Peer& from, const Frame& frame) override {
    if (!from.admitted()) return greet(from, frame);
    switch (frame.message) {
      case Message::failing:
        return rounds_.failing(from.rank);
      case Message::ended:
        if (const auto end = round_end_from_json(frame.value))
          return rounds_.ended(from.rank, *end);
        break;
      case Message::depart:
        return rounds_.depart(from.rank, static_cast<int>(frame.number));
      default:
        break;
    }
    from.ended = true;
    from.reason = "it sent what no launch sends";
  }

  void greet(Peer& from, const Frame& frame) {
    const auto hello =
        frame.message == Message::join ? agent_hello_from_json(frame.value) : std::nullopt;
    if (!hello) {
      return from.refuse({ErrorKind::usage,
                          {.what = "launches of an elastic run meet here",
                           .got = "another version of Troika",
                           .expected = "a launch"}});
    }
    // Rounds may have something to say to it.
    from.rank = agents_++;
    if (const auto why = rounds_.admit(from.rank, *hello)) from.refuse(*why);
  }

  void part_from(Peer& gone) override {
    if (gone.admitted()) rounds_.lost(gone.rank, gone.reason);
  }
  std::optional<Deadline> deadline() const override { return rounds_.deadline(); }
  void late() override { rounds_.late(unwelcome()); }

  Rounds rounds_;
  int agents_ = 0;
};

}  // namespace

AgentServer::AgentServer(net::Descriptor listener, net::ServerHandshake handshake,
                         const LaunchOptions& options, const AgentHello& host,
                         const std::string& address)
    : thread_([this, service = std::make_unique<RoundService>(
                         std::move(listener), std::move(handshake), options, host, address)] {
        service->run(stop_);
        service->finish([](Peer&) {});
      }) {}

AgentServer::~AgentServer() {
  stop_.wake();
  thread_.join();
}

}  // namespace troika::cluster
