// The control connection between the ranks of a run: it gathers them, keeps small keys and values
// for them, and tells the others at once when one is lost. Not for tensors.
//
// Rank 0 runs a server thread; every rank, rank 0 too, keeps one TCP connection to it. The network
// inside a cluster is trusted: there is no encryption here.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "troika/base/clock.h"
#include "troika/cluster/environment.h"

namespace troika::cluster {

class ServerConnection;

class Rendezvous {
 public:
  // How long a key operation waits for rank 0's server, which answers at once while it runs.
  static constexpr Milliseconds kAnswerTime{60'000};
  static constexpr Milliseconds kPartingTime{10'000};

  // Returns on every rank when all have joined; else throws on every rank that is present, with the
  // same cause: Error(cluster, usage) for a port taken, a foreign program on it, two processes of
  // one rank, disagreement on the number of ranks or the run; (cluster, timeout) naming the missing
  // ranks, as soon as the first deadline of any rank passes, or a rank 0 that is never reachable;
  // (cluster, peer) for a rank that ended meanwhile. With master_port 0 a world of one takes any
  // free port.
  static std::shared_ptr<Rendezvous> join(const Environment& environment, Deadline deadline);

  // Without leave() before, the other ranks see this one as lost: so does an exception that
  // unwinds.
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  // Keys and values are any bytes. All may be called from any thread. They throw
  // Error(cluster, peer) once rank 0, which holds the keys, is gone, and Error(cluster, timeout)
  // naming the key when the deadline passes.
  void set(const std::string& key, const std::string& value,
           Deadline deadline = Deadline::after(kAnswerTime));
  // Blocks until the key is set. Throws Error(cluster, peer) naming rank and key when any rank was
  // lost and the key is not there; keys that are there can still be read.
  std::string get(const std::string& key, Deadline deadline);
  // Adds to a decimal integer, from 0 where the key is not set, and returns the sum.
  int64_t add(const std::string& key, int64_t delta,
              Deadline deadline = Deadline::after(kAnswerTime));

  // Adds a listener, told once of each rank that is lost from the start on, on one internal thread.
  // It must not throw, nor destroy this object. When rank 0 is lost, losses after that stay unseen.
  using LossListener = std::function<void(int rank, const std::string& reason)>;
  void on_peer_lost(LossListener listener);

  // Parts in peace: the others see no loss, and this rank hears of none any more. Rank 0, which
  // holds the keys, waits for the others to leave or be lost, until the deadline; those still there
  // then find it gone, which is no loss, when this object is destroyed. Later calls of the
  // operations above are errors of the programmer.
  void leave(Deadline deadline = Deadline::after(kPartingTime));

  // Is lost on purpose: the others are told `reason`, which would else be that the connection
  // closed. Returns when they are being told. Later calls of the operations above fail.
  void fail(const std::string& reason, Deadline deadline = Deadline::after(kAnswerTime));

  // Where rank 0 listens.
  int port() const;

 private:
  explicit Rendezvous(std::unique_ptr<ServerConnection> connection);

  std::unique_ptr<ServerConnection> connection_;
};

}  // namespace troika::cluster
