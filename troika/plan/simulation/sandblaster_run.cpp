// Iterations of Sandblaster L-BFGS (docs/sandblaster.md).
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>

#include "troika/layout/portions.h"
#include "troika/plan/simulation/served_ranks.h"
#include "troika/plan/simulation/server_runs.h"

namespace troika::plan {

namespace {

constexpr int kPass = 0;  // in place of a number of vector operations

class SandblasterRun {
 public:
  explicit SandblasterRun(const SimulatedRun& run)
      : run_(run),
        ranks_(run),
        servers_(run.server_devices()),
        queues_(ranks_.timeline(), servers_.size()),
        portions_(static_cast<uint64_t>(run.portions()),
                  static_cast<int>(run.plan.exchange.sandblaster.backups)),
        replicas_(static_cast<size_t>(ranks_.ranks())) {
    // The operations of server::Lbfgs with all pairs, in the rounds of messages in which they go.
    // It computes the products with a new pair before it drops the oldest one.
    const auto& options = run.plan.exchange.sandblaster;
    const int pairs = static_cast<int>(options.history);
    rounds_ = {4 + 6 * (pairs + 1) + 3, 3 + 2 * pairs + 1};
    std::vector<int> evaluation{2, 1, kPass, 1};
    if (options.penalty > 0) evaluation.insert(evaluation.end() - 1, 2);
    for (int i = 0; i < run.evaluations; ++i) {
      rounds_.insert(rounds_.end(), evaluation.begin(), evaluation.end());
    }
  }

  RunSimulation simulate() {
    begin_round();
    auto result = ranks_.simulate();
    counts_.backups = static_cast<int64_t>(portions_.backups_begun());
    result.batch = counts_;
    return result;
  }

 private:
  struct Replica {
    int ready = 0;             // the pass for which it has parameters
    int ended = 0;             // the last pass whose end it knows
    bool is_busy = false;      // for the coordinator
    bool has_results = false;  // that count, in this pass
  };

  Replica& replica(int rank) { return replicas_[static_cast<size_t>(rank)]; }
  // The coordinator is beside the first server.
  int coordinator() const { return servers_.front(); }
  void tell(int from, int to, ServedRanks::Call arrives) {
    ranks_.timeline().tell(from, to, std::move(arrives));
  }
  // Vectors are of float64.
  double vector_bytes() const {
    const bool is_double = run_.plan.precision.starts_with("64");
    return ranks_.work().parameter_bytes * (is_double ? 1 : 2);
  }
  double shard_bytes() const { return vector_bytes() / static_cast<double>(servers_.size()); }
  // The seconds of an operation on a server's shard: those of the optimizer for as many bytes.
  double operation_seconds() const {
    const auto& work = ranks_.work();
    const double each =
        work.parameter_bytes > 0 ? work.optimizer_seconds / work.parameter_bytes : 0;
    return each * shard_bytes();
  }

  void begin_round() {
    const int operations = rounds_[round_];
    if (operations == kPass) return begin_pass();
    unanswered_ = servers_.size();
    for (size_t server = 0; server < servers_.size(); ++server) {
      tell(coordinator(), servers_[server], [this, server, operations] {
        queues_.work(server, operations * operation_seconds(), [this, server] {
          tell(servers_[server], coordinator(), [this] { take_answer(); });
        });
      });
    }
  }

  void take_answer() {
    if (--unanswered_ > 0) return;
    if (++round_ == rounds_.size()) {
      round_ = 0;
      for (int rank = 0; rank < ranks_.ranks(); ++rank) ranks_.end_step(rank);
    }
    begin_round();
  }

  void begin_pass() {
    ++pass_;
    is_open_ = true;
    portions_.begin();
    counts_.passes = pass_;
    for (int rank = 0; rank < ranks_.ranks(); ++rank) {
      replica(rank).has_results = false;
      tell(coordinator(), rank, [this, rank, pass = pass_] { fetch(rank, pass); });
    }
  }

  void fetch(int rank, int pass) {
    const auto missing = std::make_shared<size_t>(servers_.size());
    for (size_t server = 0; server < servers_.size(); ++server) {
      ranks_.begin_message(rank);
      ranks_.send(rank, servers_[server], 0, [this, rank, pass, server, missing] {
        queues_.work(server, 0, [this, rank, pass, server, missing] {
          ranks_.receive(rank, servers_[server], shard_bytes(), [this, rank, pass, missing] {
            ranks_.end_message(rank);
            if (--*missing == 0)
              tell(rank, coordinator(), [this, rank, pass] { begin(rank, pass); });
          });
        });
      });
    }
  }

  // The replica has the parameters of a pass.
  void begin(int rank, int pass) {
    replica(rank).ready = pass;
    assign();
  }

  // Gives portions to all replicas that can compute one.
  void assign() {
    if (!is_open_) return;
    for (int rank = 0; rank < ranks_.ranks(); ++rank) {
      auto& own = replica(rank);
      if (own.ready != pass_ || own.is_busy) continue;
      const auto portion = portions_.next(static_cast<uint64_t>(rank));
      if (!portion) continue;
      own.is_busy = true;
      tell(coordinator(), rank, [this, rank, portion = *portion, pass = pass_] {
        compute(rank, static_cast<int>(portion), pass, run_.portion_micro_batches());
      });
    }
  }

  // Computes so many micro-batches of a portion.
  void compute(int rank, int portion, int pass, double left) {
    // The pass has ended, so the result would be dropped.
    if (replica(rank).ended >= pass) {
      return tell(rank, coordinator(), [this, rank] { take_result(rank, -1); });
    }
    constexpr double kNone = 1e-9;
    if (left <= kNone) {
      return tell(rank, coordinator(), [this, rank, pass] { take_result(rank, pass); });
    }
    const double share = std::min(left, 1.0);
    const int64_t number = portion * static_cast<int64_t>(std::ceil(run_.portion_micro_batches())) +
                           static_cast<int64_t>(std::ceil(left)) - 1;
    ranks_.compute(rank, share * ranks_.batch_seconds(rank, pass, number),
                   [this, rank, portion, pass, left, share, begin = ranks_.now()] {
                     ranks_.count_pass(rank, begin);
                     ranks_.record(rank, "compute", "portion", begin, portion);
                     compute(rank, portion, pass, left - share);
                   });
  }

  // Takes the result of a portion in a pass; -1: the replica has given it up.
  void take_result(int rank, int pass) {
    auto& own = replica(rank);
    own.is_busy = false;
    const bool is_late = !is_open_ || pass != pass_;
    if (is_late) portions_.release(static_cast<uint64_t>(rank));
    const bool counts = !is_late && portions_.commit(static_cast<uint64_t>(rank), pass, 0);
    own.has_results = own.has_results || counts;
    ++(counts ? counts_.portions : counts_.dropped);
    if (is_open_ && portions_.is_complete()) {
      end_pass();
    } else {
      assign();
    }
  }

  // Each replica pushes the sum of its gradients that count.
  void end_pass() {
    is_open_ = false;
    unanswered_ = 0;
    for (int rank = 0; rank < ranks_.ranks(); ++rank) {
      const bool pushes = replica(rank).has_results;
      if (pushes) unanswered_ += servers_.size();
      tell(coordinator(), rank, [this, rank, pushes, pass = pass_] {
        replica(rank).ended = pass;
        if (pushes) push(rank);
      });
    }
  }

  void push(int rank) {
    for (size_t server = 0; server < servers_.size(); ++server) {
      ranks_.begin_message(rank);
      ranks_.send(rank, servers_[server], shard_bytes(), [this, rank, server] {
        ranks_.end_message(rank);
        queues_.work(server, operation_seconds(), [this, server] {
          tell(servers_[server], coordinator(), [this] { take_answer(); });
        });
      });
    }
  }

  const SimulatedRun& run_;
  ServedRanks ranks_;
  const std::vector<int> servers_;  // devices
  ServerQueues queues_;
  layout::Portions portions_;
  std::vector<Replica> replicas_;
  std::vector<int> rounds_;  // of an iteration: vector operations, or kPass
  size_t round_ = 0;
  size_t unanswered_ = 0;  // servers, or pushes at servers, that a round waits for
  int pass_ = 0;           // from 1
  bool is_open_ = false;   // the pass needs results
  BatchCounts counts_;
};

}  // namespace

RunSimulation simulate_sandblaster(const SimulatedRun& run) {
  return SandblasterRun(run).simulate();
}

}  // namespace troika::plan
