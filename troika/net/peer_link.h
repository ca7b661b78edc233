// A TcpEndpoint's state for one peer: the sockets of the connection, the outgoing and the incoming
// messages.
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

// Can be connected again after its connection has ended. Callbacks may call its functions. Only one
// thread at a time may use it.
class PeerLink : private FrameSink {
 public:
  // The references must outlive this object. Calls `changed` when the connection is complete and
  // when it has ended.
  PeerLink(std::string peer, Poller& poller, const Handlers& handlers,
           std::function<void(const PeerChange&)> changed);
  ~PeerLink() override;

  // Whether all sockets of the connection are present.
  bool is_up() const { return is_up_; }
  bool takes_messages() const { return is_up_ && !parts_; }
  // Whether at least one socket is present.
  bool has_begun() const { return pair_.has_value(); }
  // Whether the link can be deleted without losing messages.
  bool is_over() const { return !pair_ && holds_ == 0 && mailbox_.is_empty(); }
  // Whether this socket may be adopted: there is no socket yet, or the connection is `pair` and
  // lacks socket `index`.
  bool misses(const PairId& pair, int index) const;
  // Whether the current connection is `pair`.
  bool is_of(const PairId& pair) const { return pair_ == pair; }
  // Adds a missing socket.
  void adopt(const PairId& pair, int index, Descriptor socket, const SessionKeys& keys,
             Protection protection);

  void send(std::shared_ptr<Outgoing> message);
  // See TcpEndpoint. The connection may end between the two calls.
  void hold_sends() { ++holds_; }
  void release_sends();
  void post(Channel channel, Posted posted) { mailbox_.post(channel, std::move(posted), is_up_); }
  // Ends an operation with this peer; see Endpoint::cancel(). Returns false if the ticket does not
  // belong to this peer.
  bool cancel(Ticket ticket, Outcome why);
  // Whether an unconsumed message of the channel is stored.
  bool has_message(Channel channel) const { return mailbox_.has_message(channel); }
  void serve(Channel channel) { mailbox_.serve(channel); }

  // Ends the connection and completes all operations as lost. `reason` must not name the peer.
  void end(const std::string& reason);
  // Accepts no more messages. Sends `bye` once all are sent; the connection ends when the peer has
  // closed its side. Returns the connection's id.
  PairId part();
  // Whether nothing is left to send.
  bool is_silent() const;
  // Tells the peer that the connection is closed on purpose and that nothing follows.
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
    bool takes = true;        // accepts bytes, as far as known
    bool is_watched = false;  // the poller reports when it accepts bytes again
    bool has_ended = false;   // the peer has closed this socket
  };

  char* begin(const FrameHead& head) override;
  void end(const FrameHead& head) override;
  Expected expected() const override { return mailbox_.expected(); }
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
  std::vector<std::shared_ptr<Socket>> sockets_;  // by index; null: not present
  bool is_up_ = false;
  int holds_ = 0;  // calls of hold_sends() without release_sends()
  bool is_pumping_ = false;
  bool pumps_again_ = false;
  bool left_ = false;      // the peer has sent `bye`
  bool parts_ = false;     // part() was called: `bye` follows the last message
  bool said_bye_ = false;  // on this connection
};

}  // namespace troika::net
