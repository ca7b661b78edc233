// The coordinator of a batch method such as L-BFGS (Sandblaster: Dean et al., "Large Scale
// Distributed Deep Networks", NIPS 2012, section 4.2): it lets replicas compute the gradient of a
// batch portion by portion. It never has a parameter or a gradient: these are on the servers, and
// it reads numbers of them (Worker::compute()).
//
// One pass over the batch is one step of the parameter server, in which each replica pushes the sum
// of its committed portions' gradients. The table of the gradient applies pushes per step, so the
// servers leave out a replica that was lost in the step as a whole, and the coordinator has exactly
// this replica's portions computed again, in another step of the same pass.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "troika/layout/portions.h"
#include "troika/server/batch/batch_messages.h"
#include "troika/server/batch/vector_space.h"
#include "troika/server/worker.h"

namespace troika::server {

struct CoordinatorOptions {
  uint64_t portions = 1;       // of the batch
  int backups = 1;             // see layout::Portions
  std::string gradient = "g";  // the table of the gradient
  // How many replicas take part in the first round; without rounds 0.
  uint64_t replicas = 0;
  // Once it returns true, calls that wait for replicas end: evaluate() throws Error(server, peer),
  // and wait_until_asked() returns false. Called often, under the rules for callbacks. Empty:
  // never.
  std::function<bool()> is_stopped = {};
  // The interval at which replicas' orders are sent again.
  net::Duration resend = std::chrono::milliseconds(200);
};

// Counts since the beginning.
struct CoordinatorCounts {
  uint64_t passes = 0;
  uint64_t committed = 0;  // portions
  uint64_t dropped = 0;    // results whose portion was committed already, or that came too late
  uint64_t backups = 0;    // portions that were given to an idle replica once more
  uint64_t repeated = 0;   // committed portions of lost replicas, which were computed again
};

// A service on an endpoint, with a worker on this or another endpoint, which takes part in all
// steps; both must outlive it. The scheduler's consistency must be sequential(). Replicas'
// endpoints must be connected to the service's.
//
// Passes may be made in rounds, between which no vector changes:
//
//   for (int64_t round = 0; coordinator.wait_until_asked(round, deadline); ++round) {
//     ...  // passes, and vector operations
//     coordinator.end_round(round);
//   }
class Coordinator {
 public:
  // Throws Error(server, usage) for options that cannot work.
  Coordinator(net::Endpoint& endpoint, Worker& worker, CoordinatorOptions options);
  // Tells replicas once that there will be no more passes.
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  // Makes one pass: the table of the gradient then has the sum of all portions' gradients. Returns
  // the sum of their losses. Blocks; one thread at a time may call it. Throws Error(server):
  // `timeout` after the deadline, `peer` if values were lost with their servers; the gradient is
  // then undefined. Throws Error(server, usage) for a table of the gradient that does not apply
  // pushes per step by the rule `sum`.
  double evaluate(Deadline deadline);
  // Blocks until all replicas that are left have asked for the round; for round 0,
  // CoordinatorOptions::replicas of them, less those that were lost. Returns false if no replica is
  // left. Throws Error(server, timeout).
  bool wait_until_asked(int64_t round, Deadline deadline);
  // Tells the replicas that no vector changes before they ask for the next round.
  void end_round(int64_t round);
  // Makes replicas fail with this reason.
  void fail(const std::string& reason);
  CoordinatorCounts counts();

 private:
  struct Replica {
    std::string name;
    int64_t ready = -1;       // BatchReport::ready
    uint64_t assignment = 0;  // the last one
    uint64_t portion = 0;     // of the assignment
    int64_t step = -1;        // of the assignment
    uint64_t judged = 0;      // the last assignment that was judged
    bool counts = false;      // whether its result is committed
    int64_t asked = -1;       // BatchReport::asked
  };

  void check_table();
  // The number of replicas among the workers that are left.
  uint64_t replicas_left();
  bool all_ask(int64_t round);
  bool is_stopped() const { return options_.is_stopped && options_.is_stopped(); }
  void take(const std::string& peer, const BatchReport& report);
  void judge(uint64_t worker, Replica& replica, const BatchReport& report);
  // Forgets workers that have left or were lost.
  void lose_departed();
  // Gives portions to all replicas that can compute one.
  void assign();
  void send(uint64_t worker, const Replica& replica);
  void send_all();
  void tick();

  net::Endpoint& endpoint_;
  Worker& worker_;
  const CoordinatorOptions options_;
  layout::Portions portions_;
  std::map<uint64_t, Replica> replicas_;  // by worker number
  int64_t step_ = -1;                     // of the current or last pass
  int64_t round_ = -1;                    // the last one that has ended
  bool has_ended_ = true;                 // no pass needs results
  bool is_over_ = false;
  std::string failure_;
  uint64_t orders_ = 0;  // sent
  CoordinatorCounts counts_;
  net::Ticket timer_ = 0;
};

// Vectors that are tables of a parameter server.
class ServedVectors : public VectorSpace {
 public:
  // `worker` must outlive it. A call takes at most `limit`.
  ServedVectors(Worker& worker, net::Duration limit) : worker_(worker), limit_(limit) {}

  // Blocks. Throws what Worker::compute() and Handle::wait() throw.
  std::vector<double> compute(const VectorOperations& operations) override;

 private:
  Worker& worker_;
  const net::Duration limit_;
};

// Returns the tables of vectors with these names and of `length` float64 elements: `gradient` with
// pushes that are summed per step, the others for assignments and vector operations.
std::vector<TableSpec> vector_tables(const std::vector<std::string>& names, uint64_t length,
                                     const std::string& gradient);

}  // namespace troika::server
