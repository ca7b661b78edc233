// One peer of a TcpEndpoint: the sockets of the pair, what waits to be sent and what has come.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "troika/net/frame_reader.h"
#include "troika/net/frame_writer.h"
#include "troika/net/mailbox.h"
#include "troika/net/poller.h"
#include "troika/net/send_queue.h"

namespace troika::net {

// Identifies the sockets that form one connection.
struct PairId {
  uint64_t attempt = 0;  // Hello::attempt
  int sockets = 1;

  bool operator==(const PairId&) const = default;
};

// A peer whose connection has ended can be connected again. Callbacks may call back into it. For a
// single thread at a time.
class PeerLink : private FrameSink {
 public:
  // The references must outlive it. `changed` is told when the connection is complete, and when it
  // has ended.
  PeerLink(std::string peer, Poller& poller, const Handlers& handlers,
           std::function<void(const PeerChange&)> changed);
  ~PeerLink() override;

  // Whether all sockets of the pair are there.
  bool is_up() const { return is_up_; }
  bool takes_messages() const { return is_up_ && !parts_; }
  // Whether any are.
  bool has_begun() const { return pair_.has_value(); }
  // Whether nothing would be lost with it.
  bool is_over() const { return !pair_ && mailbox_.is_empty(); }
  // Whether there is no socket yet, or the connection is this pair's and lacks this one.
  bool misses(const PairId& pair, int index) const;
  // Whether there are sockets, and of that pair.
  bool is_of(const PairId& pair) const { return pair_ == pair; }
  // Takes a socket that is missing.
  void adopt(const PairId& pair, int index, Descriptor socket, const SessionKeys& keys,
             Protection protection);

  void send(std::shared_ptr<Outgoing> message);
  void post(Channel channel, Posted posted) { mailbox_.post(channel, std::move(posted), is_up_); }
  // Whether the ticket was one of this peer's.
  bool cancel(Ticket ticket, Outcome why);
  // Whether a message of the channel is here that nobody has taken.
  bool has_message(Channel channel) const { return mailbox_.has_message(channel); }
  void serve(Channel channel) { mailbox_.serve(channel); }

  // Ends the connection: completes all operations as lost. `reason` says how, without the peer.
  void end(const std::string& reason);
  // Takes no more messages; says bye when all are sent, and ends when the peer has ended its side.
  // The connection that this is about.
  PairId part();
  // Whether nothing is left to be sent.
  bool is_silent() const;
  // Tells the peer that the end is intended, and that nothing follows.
  void say_bye();

 private:
  struct Socket {
    Socket(Descriptor descriptor, const SessionKeys& keys, Protection protection)
        : fd(std::move(descriptor)),
          reader(keys.receive, protection),
          writer(keys.send, protection) {}

    Descriptor fd;
    FrameReader reader;
    FrameWriter writer;
    bool takes = true;        // bytes, as far as is known
    bool is_watched = false;  // by the poller, for when it takes bytes again
    bool has_ended = false;   // after the peer has said bye
  };

  char* begin(const FrameHead& head) override;
  void end(const FrameHead& head) override;
  Carries carries(size_t index) const;
  bool is_present(size_t index, const std::shared_ptr<Socket>& socket) const;
  void drain_others(size_t index);
  void ready(size_t index, uint32_t events);
  void read(size_t index);
  void pump();
  void pump(size_t index);

  const std::string peer_;
  Poller& poller_;
  const std::function<void(const PeerChange&)> changed_;
  SendQueue queue_;
  Mailbox mailbox_;
  std::optional<PairId> pair_;
  std::vector<std::shared_ptr<Socket>> sockets_;  // by index; null: not there yet
  bool is_up_ = false;
  bool is_pumping_ = false;
  bool pumps_again_ = false;
  bool left_ = false;      // the peer has said bye
  bool parts_ = false;     // bye is to be said
  bool said_bye_ = false;  // of this connection
};

}  // namespace troika::net
