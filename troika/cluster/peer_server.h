// The poll() loop of a server: accepts connections, lets them prove that they hold the run's
// secret, reads whole frames from those that did, writes to them and parts from those that end.
// The derived class knows what frames mean.
//
// Strangers get no byte. They hold few descriptors (PeerLimits), for seconds: the oldest goes
// when one more comes, and when this process has no descriptor left.
#pragma once

#include <functional>
#include <list>
#include <optional>
#include <string>

#include "troika/base/clock.h"
#include "troika/cluster/peer.h"
#include "troika/net/descriptor.h"
#include "troika/net/handshake.h"

namespace troika::cluster {

struct PeerLimits {
  // Connections that have proved nothing yet, and for how long each may be one.
  ptrdiff_t strangers = 64;
  Milliseconds proof_time{2000};  // a client sends its proof as soon as it is connected
  // Connections that have proved themselves and are on their way to be admitted or sent elsewhere;
  // more wait to be accepted.
  ptrdiff_t newcomers = 128;
};

// All state belongs to the thread that serves; everything below is called on it.
class PeerServer {
 public:
  PeerServer(net::Descriptor listener, net::ServerHandshake handshake, PeerLimits limits = {});
  virtual ~PeerServer() = default;
  PeerServer(const PeerServer&) = delete;
  PeerServer& operator=(const PeerServer&) = delete;

  // Serves until `stop` is woken.
  void run(const net::Waker& stop);
  // Says the last word to every admitted peer, sends what is still to be sent, and waits for the
  // peers to end, at most a second.
  void finish(const std::function<void(Peer&)>& last_word);

 protected:
  // `from` has proved that it holds the secret.
  virtual void handle(Peer& from, const Frame& frame) = 0;
  // Already out of the connections.
  virtual void part_from(Peer& gone) = 0;
  virtual void before_flush() {}
  // When late() is to be called; nothing: never.
  virtual std::optional<Deadline> deadline() const = 0;
  virtual void late() = 0;

  std::list<Peer>& connections() { return connections_; }
  // Accepts nobody from now on.
  void stop_listening() { listener_.reset(); }
  // Handles the frames that were read.
  void take_frames(Peer& from);
  // Goes on serving, at most for so long, until `is_over()`.
  void serve_until(const std::function<bool()>& is_over, Milliseconds at_most);
  // Text for the error of ranks that waited in vain: connections that failed to authenticate, or
  // that this process had no descriptors for. "" for none.
  std::string unwelcome() const;

 private:
  void accept_all();
  bool has_room() const;
  // Parts from strangers beyond `most`, the oldest first; whether there were any.
  bool keep_strangers(ptrdiff_t most);
  void read(Peer& from);
  // Flushes everybody and parts from the ended until nothing more happens.
  void settle();
  // One round of poll(): accepts and reads whatever is there.
  void wait(const net::Waker* stop, Milliseconds at_most);
  // How long poll() may wait.
  Milliseconds time_to_wait() const;
  void end_the_silent();

  net::Descriptor listener_;
  net::ServerHandshake handshake_;
  const PeerLimits limits_;
  std::list<Peer> connections_;
  int unproven_ = 0;
  std::string accept_problem_;     // the last reason not to accept
  std::optional<Deadline> rests_;  // accepts nobody until then
};

}  // namespace troika::cluster
