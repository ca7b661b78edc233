// The control connection between the ranks of a run: it gathers them, keeps small keys and values
// for them, and tells the others at once when one is lost. Not for tensors.
//
// Rank 0 has an endpoint of room net to serve; every rank, rank 0 too, is connected to it by one of
// its own. In larger worlds some ranks relay: others of their machine are connected to them. Both
// ends of a connection prove that they hold the run's secret before either believes a byte
// (troika/net); what they say is encrypted. See docs/security.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "troika/base/clock.h"
#include "troika/cluster/answers.h"
#include "troika/cluster/environment.h"
#include "troika/cluster/relay_plan.h"

namespace troika::cluster {

struct RunSecret;
class ServerConnection;

class Rendezvous {
 public:
  // How long a key operation waits for rank 0's server, which answers at once while it runs.
  static constexpr Milliseconds kAnswerTime{60'000};
  static constexpr Milliseconds kPartingTime{10'000};

  // Returns on every rank when all have joined; else throws on every rank that is present, with the
  // same cause: Error(cluster, usage) for a port taken, a foreign program on it, two processes of
  // one rank, disagreement on the number of ranks or the run, or, after seconds, a rank 0 that does
  // not hold this secret; (cluster, timeout) naming the missing ranks, as soon as the first
  // deadline of any rank passes, or a rank 0 that nobody hears of; (cluster, peer) for a rank that
  // ended meanwhile. With master_port 0 a world of one takes any free port. `rules` are the same on
  // all ranks.
  static std::shared_ptr<Rendezvous> join(const Environment& environment, const RunSecret& secret,
                                          Deadline deadline, const RelayRules& rules = {});
  // With the secret that the launcher handed down, or this user's (secret_of_ranks()).
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

  // Adds a listener, told once of each rank that is lost from the start on, or that leaves with
  // this farewell. All listeners run on one internal thread, in the order of what happened. They
  // must not throw, block or destroy this object, nor call the operations of this class, which wait
  // for that very thread: those only from other threads (else CheckError). When rank 0 is gone,
  // what happens after that stays unseen.
  using LossListener = std::function<void(int rank, const std::string& reason)>;
  void on_peer_lost(LossListener listener);
  using LeaveListener = std::function<void(int rank, const std::string& farewell)>;
  void on_peer_left(LeaveListener listener);

  // Registers the function that answers for this rank when any rank asks, whatever the program is
  // doing meanwhile; before that the answer is an empty string. Once only. It runs on the internal
  // thread, and on the thread of this rank's own ask_all(), perhaps both at once; what holds for
  // listeners holds for it. After leave() this rank answers no more.
  using Answerer = std::function<std::string(const std::string& question)>;
  void on_asked(Answerer answerer);
  // Every rank's answer. Returns once all have answered that can, at the latest at the deadline,
  // also when rank 0, which passes on, is gone. Questions and answers are any bytes. From any
  // thread; may run concurrently.
  Answers ask_all(const std::string& question, Deadline deadline);

  // Parts in peace: the others are told the farewell at once and see no loss, and this rank hears
  // of nothing any more. Rank 0, which holds the keys, then waits for the others to leave or be
  // lost, until the deadline; those still there find it gone, which is no loss, when this object is
  // destroyed. Later calls of the operations above are errors of the programmer. The destructor of
  // a rank that relays waits up to a second for the ranks it relays for.
  void leave(const std::string& farewell = {}, Deadline deadline = Deadline::after(kPartingTime));

  // Is lost on purpose: the others are told `reason`, which would else be that the connection
  // closed. Returns when they are being told. Later calls of the operations above fail.
  void fail(const std::string& reason, Deadline deadline = Deadline::after(kAnswerTime));

  // Where rank 0 listens.
  int port() const;
  // By rank: who relays between it and rank 0, itself or another rank of its machine; 0 for nobody.
  // As it was when all had joined, or when this rank's own relay last ended.
  std::vector<int> relays() const;

 private:
  explicit Rendezvous(std::unique_ptr<ServerConnection> connection);

  std::unique_ptr<ServerConnection> connection_;
};

}  // namespace troika::cluster
