// The control connection between the ranks of a run. It gathers the ranks, stores small keys and
// values, and notifies the other ranks at once when a rank is lost. Not for tensors.
//
// Rank 0 runs a server, an endpoint of troika/net. Every rank, including rank 0, connects to it
// with its own endpoint. In larger worlds some ranks relay for other ranks of their machine. Both
// ends of a connection prove that they hold the run's secret before either trusts a byte
// (troika/net), and their messages are encrypted. See docs/security.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "troika/base/clock.h"
#include "troika/cluster/discovery/environment.h"
#include "troika/cluster/rendezvous/answers.h"
#include "troika/cluster/rendezvous/relay_plan.h"

namespace troika::cluster {

struct RunSecret;
class ServerConnection;

class Rendezvous {
 public:
  // How long a key operation waits for rank 0's server, which answers at once while it runs.
  static constexpr Milliseconds kAnswerTime{60'000};
  static constexpr Milliseconds kPartingTime{10'000};

  // Joins the run. Returns on every rank once all have joined; otherwise throws the same error on
  // every rank that is present. Error(cluster, usage): the port is in use or belongs to another
  // program, two processes have the same rank, ranks disagree on the world size or the run, or
  // (after seconds) rank 0 does not hold this secret. Error(cluster, timeout): ranks are missing,
  // which are named, when the first rank's deadline passes; or rank 0 is unreachable.
  // Error(cluster, peer): a rank ended meanwhile. With master_port 0, a world of one uses any free
  // port. `rules` must be equal on all ranks.
  static std::shared_ptr<Rendezvous> join(const Environment& environment, const RunSecret& secret,
                                          Deadline deadline, const RelayRules& rules = {});
  // Joins with the launcher's secret, or this user's (secret_of_ranks()).
  static std::shared_ptr<Rendezvous> join(const Environment& environment, Deadline deadline);

  // Without a previous leave(), the other ranks see this rank as lost, for example when an
  // exception unwinds.
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  // Keys and values may contain any bytes. Any thread may call these functions. They throw
  // Error(cluster, peer) once rank 0, which stores the keys, is gone, and Error(cluster, timeout)
  // with the key on the deadline.
  void set(const std::string& key, const std::string& value,
           Deadline deadline = Deadline::after(kAnswerTime));
  // Blocks until the key is set. Throws Error(cluster, peer) with rank and key if any rank was lost
  // and the key is not set. Keys that are set can still be read.
  std::string get(const std::string& key, Deadline deadline);
  // Adds to a decimal integer, 0 if the key is not set, and returns the sum.
  int64_t add(const std::string& key, int64_t delta,
              Deadline deadline = Deadline::after(kAnswerTime));

  // Add a listener. It is called once for each rank that is lost, with the reason, or for each rank
  // that leaves, with the rank's farewell; also for events before this call. All listeners run on
  // one internal thread, in the order of events. A listener must not throw, block, destroy this
  // object, or call operations of this class: they would wait for the listener's own thread
  // (CheckError). After rank 0 is gone, later events are not reported.
  using LossListener = std::function<void(int rank, const std::string& reason)>;
  void on_peer_lost(LossListener listener);
  using LeaveListener = std::function<void(int rank, const std::string& farewell)>;
  void on_peer_left(LeaveListener listener);

  // Registers the function that answers questions for this rank; may be called once. Until then the
  // answer is the empty string. The function runs on the internal thread, independently of what the
  // program is doing, and on threads in this rank's ask_all(), possibly concurrently. It has the
  // same restrictions as listeners. After leave() this rank does not answer any more.
  using Answerer = std::function<std::string(const std::string& question)>;
  void on_asked(Answerer answerer);
  // Returns every rank's answer. Blocks until all reachable ranks have answered, or until the
  // deadline; also returns if rank 0, which forwards questions, is gone. Questions and answers may
  // contain any bytes. Any thread may call it, also concurrently.
  Answers ask_all(const std::string& question, Deadline deadline);

  // Leaves the run: the other ranks get the farewell at once and see no loss; this rank gets no
  // more events. On rank 0, which stores the keys, blocks until the other ranks have left or are
  // lost, or until the deadline; the remaining ranks notice that it is gone when this object is
  // destroyed, and do not count this as a loss. Afterwards the operations above must not be called
  // (CheckError). The destructor of a relay waits up to a second for its ranks.
  void leave(const std::string& farewell = {}, Deadline deadline = Deadline::after(kPartingTime));

  // Marks this rank as lost on purpose: the other ranks get `reason` instead of a closed
  // connection. Returns once they are being notified. Later operations fail.
  void fail(const std::string& reason, Deadline deadline = Deadline::after(kAnswerTime));

  // The port on which rank 0 listens.
  int port() const;
  // By rank: the rank that relays between it and rank 0, which may be the rank itself; 0 for none.
  // As of the time when all had joined, or when this rank's relay last ended.
  std::vector<int> relays() const;

 private:
  explicit Rendezvous(std::unique_ptr<ServerConnection> connection);

  std::unique_ptr<ServerConnection> connection_;
};

}  // namespace troika::cluster
