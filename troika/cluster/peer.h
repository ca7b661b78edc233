// One connection as a server sees it. Nonblocking; for a single thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "troika/base/clock.h"
#include "troika/cluster/outbox.h"
#include "troika/cluster/wire.h"
#include "troika/net/descriptor.h"
#include "troika/net/handshake.h"
#include "troika/net/record.h"

namespace troika::cluster {

class Peer {
 public:
  // One that has `proof_time` to prove that it holds the secret.
  Peer(net::Descriptor connection, Milliseconds proof_time);
  // One that is authenticated and admitted; `in` holds what it has said since.
  Peer(net::Descriptor connection, net::Session session, Decoder in);

  // To one that talks.
  void send(const Frame& frame) { send_encoded(encode(frame)); }
  // One frame or several.
  void send_encoded(std::string_view frames) { out_.add(session_->sealer.seal(frames)); }
  // The last frame it gets: what it says from now on counts no more.
  void refuse(const Refusal& why);
  void close();
  // Sends what the socket takes; after close(), closes our half once all is out.
  void flush();
  // Reads what is there. An end, also one for bytes that prove nothing, sets `ended`.
  void read(net::ServerHandshake& handshake);
  std::optional<Frame> next();
  void end(const std::string& why);

  int socket() const { return socket_.get(); }
  bool writes() const { return !out_.empty(); }
  // Has not proved yet that it holds the secret: neither its first message was right, or its first
  // record has yet to come.
  bool is_stranger() const { return !session_; }
  // Whether frames may follow, and may be sent.
  bool talks() const { return session_ && session_->opener.has_opened() && !closing && !ended; }
  bool admitted() const { return rank >= 0; }
  // When it is no longer waited for; nothing: never.
  std::optional<Deadline> patience() const;

  int rank = -1;         // once admitted
  bool relays = false;   // what it says is of other ranks, too
  bool closing = false;  // nothing it says counts any more
  bool ended = false;
  bool failed_proof = false;  // it spoke as a client of ours does, without the secret
  std::string reason;         // why it ended

 private:
  void take_first_message(net::ServerHandshake& handshake, std::string& bytes);

  net::Descriptor socket_;
  std::string first_;  // what came of the first message
  std::optional<net::Session> session_;
  Decoder in_;
  Outbox out_;
  Deadline patience_;
  bool shut_ = false;  // we have sent our last byte
};

}  // namespace troika::cluster
