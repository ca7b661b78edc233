// An endpoint of a simulated network. Internal to the room.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "troika/net/mailbox.h"
#include "troika/net/send_queue.h"
#include "troika/net/simulated_network.h"

namespace troika::net {

class SimulatedEndpoint : public Endpoint {
 public:
  SimulatedEndpoint(std::string name, SimulatedNetwork& network, SimulatedAccess access)
      : Endpoint(std::move(name)), network_(network), access_(access) {}

  Ticket send(const std::string& peer, Channel channel, const Pieces& message, Priority priority,
              Completion completion) override;
  Ticket receive(const std::string& peer, Channel channel, std::span<char> buffer,
                 Completion completion) override;
  void handle(Channel channel, size_t most, Handler handler) override;
  void listen_to_peers(PeerListener listener) override { listener_ = std::move(listener); }
  void disconnect(const std::string& peer) override;
  void part(const std::string& peer, Duration at_most) override;
  void cancel(Ticket ticket, Outcome why) override;
  Duration now() const override { return network_.now(); }
  Ticket after(Duration delay, std::function<void()> timer) override;
  bool run_until(const std::function<bool()>& is_over, Duration at_most) override;

  // Connects to the other endpoint, or ends the connection.
  void set_up(SimulatedEndpoint& other, bool is_up);
  void stop() { is_stopped_ = true; }
  const SimulatedTraffic& traffic() const { return traffic_; }

 private:
  struct Frame {
    FrameHead head;
    std::string payload = {};
    uint64_t bytes = 0;  // on the links, with the head
    Duration begun{0};   // to be sent
  };
  // One direction of a connection: to the peer.
  struct Link {
    Link(const std::string& peer, const Handlers& handlers,
         const std::function<void(const FrameHead&)>& reply)
        : mailbox(peer, handlers, reply) {}

    SendQueue queue;
    Mailbox mailbox;
    SimulatedEndpoint* other = nullptr;  // since the first connection
    Link* back = nullptr;                // the other direction, since then
    bool is_up = false;
    bool parts = false;       // the connection ends when all has been sent
    uint64_t connection = 0;  // changes with each one that comes or goes
    bool will_pump = false;
    std::optional<Frame> frame = {};  // that is being sent
    uint64_t left = 0;                // bytes of it
    Duration free_at{0};              // when the link has sent all before
    Duration arrives_at{0};           // when the last frame does: none overtakes another
  };

  Link& link_to(const std::string& peer);
  void pump_soon(Link& link);
  void pump(Link& link);
  void send_frame(Link& link);
  void end_when_sent(Link& link);
  Duration end_at_peer(Link& link);
  void set_up(Link& link, bool is_up);
  void begin_frame(Link& link, const OutFrame& frame);
  void arrive(Link& link, Frame frame, Duration sending);
  void take(Link& link, const Frame& frame);

  SimulatedNetwork& network_;
  const SimulatedAccess access_;
  Duration up_free_at_{0};    // when the access has sent all before
  Duration down_free_at_{0};  // when it has received all before
  SimulatedTraffic traffic_;
  Handlers handlers_;
  PeerListener listener_;
  std::map<std::string, std::unique_ptr<Link>> links_;
  bool is_stopped_ = false;
};

}  // namespace troika::net
