// The poll() loop of a server: accepts connections, reads whole frames from them, writes to them
// and parts from those that end. What frames mean is the derived class's affair.
#pragma once

#include <functional>
#include <list>
#include <optional>
#include <string>

#include "troika/base/clock.h"
#include "troika/cluster/descriptor.h"
#include "troika/cluster/peer.h"

namespace troika::cluster {

// All state belongs to the thread that serves; everything below is called on it.
class PeerServer {
 public:
  explicit PeerServer(Descriptor listener);
  virtual ~PeerServer() = default;
  PeerServer(const PeerServer&) = delete;
  PeerServer& operator=(const PeerServer&) = delete;

  // Serves until `stop` is woken.
  void run(const Waker& stop);
  // Says the last word to every admitted peer, sends what is still to be sent, and waits for the
  // peers to end, at most a second.
  void finish(const std::function<void(Peer&)>& last_word);

 protected:
  virtual void handle(Peer& from, const Frame& frame) = 0;
  // Already out of the connections.
  virtual void part_from(Peer& gone) = 0;
  // The listener is closed.
  virtual void cannot_accept(const std::string& reason) = 0;
  virtual void before_flush() {}
  // When late() is to be called; nothing: never.
  virtual std::optional<Deadline> deadline() const = 0;
  virtual void late() = 0;

  std::list<Peer>& connections() { return connections_; }

 private:
  void accept_all();
  void read(Peer& from);
  // Flushes everybody and parts from the ended until nothing more happens.
  void settle();
  // One round of poll(): accepts and reads whatever is there.
  void wait(const Waker* stop, Milliseconds at_most);

  Descriptor listener_;
  std::list<Peer> connections_;
};

}  // namespace troika::cluster
