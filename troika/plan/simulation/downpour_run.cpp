// Replicas of Downpour SGD, which step by themselves (docs/downpour.md).
#include <algorithm>
#include <utility>

#include "troika/plan/simulation/served_ranks.h"
#include "troika/plan/simulation/server_runs.h"

namespace troika::plan {

namespace {

class DownpourRun {
 public:
  explicit DownpourRun(const SimulatedRun& run)
      : options_(run.plan.exchange.downpour),
        ranks_(run),
        servers_(run.server_devices()),
        queues_(ranks_.timeline(), servers_.size()),
        shard_(1 / static_cast<double>(servers_.size())),
        pushes_(ranks_.ranks()),
        replicas_(static_cast<size_t>(ranks_.ranks())) {}

  RunSimulation simulate() {
    const bool warms_up = ranks_.ranks() > 1 && options_.warm_start_steps > 0;
    for (int rank = 0; rank < ranks_.ranks(); ++rank) {
      if (rank == 0 || !warms_up) begin_step(rank);
    }
    auto result = ranks_.simulate();
    result.staleness = pushes_.staleness();
    return result;
  }

 private:
  struct Replica {
    int steps = 0;
    bool has_sums = false;          // gradients that are not pushed
    size_t unconfirmed = 0;         // servers that have not confirmed the last push
    bool has_fetch = false;         // that is not taken
    size_t missing = 0;             // servers whose parameters have not come
    int64_t seen = 0, fetched = 0;  // pushes of others in its parameters, and in those of the fetch
    int64_t oldest = 0;             // those in the parameters of the oldest gradient of its sums
    double push_begin = 0, fetch_begin = 0;
    const size_t* awaited = nullptr;  // it waits until this number is 0
    ServedRanks::Call then = {};      // after this
  };

  Replica& replica(int rank) { return replicas_[static_cast<size_t>(rank)]; }
  double shard_bytes() const { return ranks_.work().parameter_bytes * shard_; }

  void begin_step(int rank) { begin_pass(rank, ranks_.passes(rank, replica(rank).steps), 0); }

  void begin_pass(int rank, const std::vector<ServedRanks::Pass>& passes, size_t number) {
    if (number == passes.size()) return end_passes(rank);
    ranks_.compute(rank, passes[number].seconds,
                   [this, rank, passes, number, begin = ranks_.now()] {
                     ranks_.record_pass(rank, *passes[number].item, begin);
                     begin_pass(rank, passes, number + 1);
                   });
  }

  // The order of a step is that of parallel::Downpour.
  void end_passes(int rank) {
    auto& own = replica(rank);
    ++own.steps;
    if (!std::exchange(own.has_sums, true)) own.oldest = own.seen;
    const auto step = [this, rank] { step_locally(rank, [this, rank] { push_and_fetch(rank); }); };
    if (!own.has_fetch) return step();
    take_fetch(rank, step);
  }

  void step_locally(int rank, ServedRanks::Call then) {
    if (options_.local_rate == 0) return then();
    ranks_.compute(rank, ranks_.optimizer_seconds(rank, 1),
                   [this, rank, begin = ranks_.now(), then = std::move(then)] {
                     ranks_.record(rank, "compute", "optimizer", begin);
                     then();
                   });
  }

  void push_and_fetch(int rank) {
    auto& own = replica(rank);
    const auto fetch = [this, rank] {
      if (replica(rank).steps % options_.n_fetch > 0) return end_step(rank);
      start_fetch(rank);
      if (options_.overlap) return end_step(rank);
      take_fetch(rank, [this, rank] {
        if (!replica(rank).has_sums) return end_step(rank);
        step_locally(rank, [this, rank] { end_step(rank); });
      });
    };
    if (own.steps % options_.n_push > 0) return fetch();
    wait_for(rank, own.unconfirmed, [this, rank, fetch] {
      push(rank);
      fetch();
    });
  }

  void end_step(int rank) {
    ranks_.end_step(rank);
    const bool ends_warm_start = rank == 0 && replica(rank).steps == options_.warm_start_steps;
    for (int other = 1; ends_warm_start && other < ranks_.ranks(); ++other) {
      start_fetch(other);
      take_fetch(other, [this, other] { begin_step(other); });
    }
    begin_step(rank);
  }

  void push(int rank) {
    auto& own = replica(rank);
    own.has_sums = false;
    own.unconfirmed = servers_.size();
    own.push_begin = ranks_.now();
    for (size_t server = 0; server < servers_.size(); ++server) {
      ranks_.begin_message(rank);
      ranks_.send(rank, servers_[server], shard_bytes(),
                  [this, rank, server, oldest = own.oldest] { apply(rank, server, oldest); });
    }
  }

  // Staleness is counted at the first server.
  void apply(int rank, size_t server, int64_t oldest) {
    ranks_.end_message(rank);
    queues_.work(server, ranks_.work().optimizer_seconds * shard_, [this, rank, server, oldest] {
      if (server == 0) pushes_.push(rank, oldest);
      ranks_.timeline().tell(servers_[server], rank, [this, rank] {
        auto& own = replica(rank);
        if (--own.unconfirmed > 0) return;
        ranks_.record(rank, "communication", "push", own.push_begin, -1,
                      ranks_.work().parameter_bytes);
        resume(rank);
      });
    });
  }

  // A request does not overtake the push before it.
  void start_fetch(int rank) {
    auto& own = replica(rank);
    own.has_fetch = true;
    own.missing = servers_.size();
    own.fetch_begin = ranks_.now();
    for (size_t server = 0; server < servers_.size(); ++server) {
      ranks_.begin_message(rank);
      ranks_.send(rank, servers_[server], 0, [this, rank, server] {
        ranks_.end_message(rank);
        queues_.work(server, 0, [this, rank, server] { give(rank, server); });
      });
    }
  }

  void give(int rank, size_t server) {
    if (server == 0) replica(rank).fetched = pushes_.of_others(rank);
    ranks_.begin_message(rank);
    ranks_.receive(rank, servers_[server], shard_bytes(), [this, rank] {
      auto& own = replica(rank);
      ranks_.end_message(rank);
      if (--own.missing > 0) return;
      ranks_.record(rank, "communication", "fetch", own.fetch_begin, -1,
                    ranks_.work().parameter_bytes);
      resume(rank);
    });
  }

  void take_fetch(int rank, ServedRanks::Call then) {
    wait_for(rank, replica(rank).missing, [this, rank, then = std::move(then)] {
      auto& own = replica(rank);
      own.has_fetch = false;
      own.seen = own.fetched;
      then();
    });
  }

  // Calls `then` once this number of the replica is 0.
  void wait_for(int rank, const size_t& awaited, ServedRanks::Call then) {
    if (awaited == 0) return then();
    auto& own = replica(rank);
    own.awaited = &awaited;
    own.then = std::move(then);
    ranks_.begin_wait(rank);
  }

  void resume(int rank) {
    auto& own = replica(rank);
    if (!own.awaited || *own.awaited > 0) return;
    own.awaited = nullptr;
    ranks_.end_wait(rank);
    std::exchange(own.then, nullptr)();
  }

  const layout::DownpourExchange& options_;
  ServedRanks ranks_;
  const std::vector<int> servers_;  // devices
  ServerQueues queues_;
  const double shard_;  // the share of a server
  PushCounts pushes_;
  std::vector<Replica> replicas_;
};

}  // namespace

RunSimulation simulate_downpour(const SimulatedRun& run) {
  return DownpourRun(run).simulate();
}

}  // namespace troika::plan
