// Steps of ranks whose parameters are on servers (docs/parameter-server.md).
#include <algorithm>
#include <limits>
#include <utility>

#include "troika/plan/simulation/served_ranks.h"
#include "troika/plan/simulation/server_runs.h"

namespace troika::plan {

namespace {

class ParameterServerRun {
 public:
  explicit ParameterServerRun(const SimulatedRun& run)
      : run_(run),
        ranks_(run),
        queues_(ranks_.timeline(), run.server_devices().size()),
        steps_(static_cast<size_t>(ranks_.ranks())) {
    for (const int device : run.server_devices()) {
      servers_.push_back({.device = device, .applied = std::vector<int>(steps_.size(), 0)});
    }
  }

  RunSimulation simulate() {
    for (int rank = 0; rank < ranks_.ranks(); ++rank) begin_step(rank);
    auto result = ranks_.simulate();
    result.staleness = staleness_.staleness();
    return result;
  }

 private:
  struct Pull {
    int rank = 0;
    int needs = 0;  // steps of all ranks that must be applied
  };
  struct Server {
    int device = 0;
    std::vector<int> pushed = {};   // arrived, by step; of consistencies that apply whole steps
    std::vector<int> applied = {};  // steps, by rank
    std::vector<Pull> waiting = {};
  };
  struct Steps {
    int made = 0;
    size_t missing = 0;  // servers whose parameters have not come
  };

  const layout::ServerExchange& options() const { return run_.plan.exchange.servers; }
  bool is_eventual() const { return options().consistency == "eventual"; }
  Steps& steps(int rank) { return steps_[static_cast<size_t>(rank)]; }
  double shard() const { return 1 / static_cast<double>(servers_.size()); }
  double shard_bytes() const { return ranks_.work().parameter_bytes * shard(); }

  void begin_step(int rank) { begin_pass(rank, ranks_.passes(rank, steps(rank).made), 0); }

  void begin_pass(int rank, const std::vector<ServedRanks::Pass>& passes, size_t number) {
    if (number == passes.size()) return push_and_pull(rank);
    ranks_.compute(rank, passes[number].seconds,
                   [this, rank, passes, number, begin = ranks_.now()] {
                     ranks_.record_pass(rank, *passes[number].item, begin);
                     begin_pass(rank, passes, number + 1);
                   });
  }

  // A pull does not overtake the push before it. It is answered when the steps are applied that
  // the consistency asks for; the rank may begin its step no earlier.
  void push_and_pull(int rank) {
    auto& own = steps(rank);
    const int step = own.made++;
    const int64_t delay = is_eventual() ? std::numeric_limits<int>::max() : options().delay;
    const int needs = static_cast<int>(std::max<int64_t>(own.made - delay, 0));
    own.missing = servers_.size();
    ranks_.begin_wait(rank);
    for (size_t server = 0; server < servers_.size(); ++server) {
      const int device = servers_[server].device;
      ranks_.send(rank, device, shard_bytes(),
                  [this, rank, server, step] { take_push(rank, server, step); });
      ranks_.send(rank, device, 0, [this, rank, server, needs] {
        servers_[server].waiting.push_back({rank, needs});
        answer(server);
      });
    }
  }

  void take_push(int rank, size_t number, int step) {
    auto& server = servers_[number];
    const double seconds = ranks_.work().optimizer_seconds * shard();
    if (is_eventual()) {
      return queues_.work(number, seconds, [this, rank, number] {
        ++servers_[number].applied[static_cast<size_t>(rank)];
        answer(number);
      });
    }
    server.pushed.resize(std::max(server.pushed.size(), static_cast<size_t>(step) + 1));
    if (++server.pushed[static_cast<size_t>(step)] < ranks_.ranks()) return;
    queues_.work(number, seconds, [this, number] {
      for (int& steps : servers_[number].applied) ++steps;
      answer(number);
    });
  }

  // Answers the pulls that may be answered now; those of an eventual consistency after the work
  // that came before them.
  void answer(size_t number) {
    auto& server = servers_[number];
    const int applied = std::ranges::min(server.applied);
    const auto ready = std::ranges::stable_partition(
        server.waiting, [&](const Pull& pull) { return pull.needs > applied; });
    const std::vector<Pull> pulls(ready.begin(), ready.end());
    server.waiting.erase(ready.begin(), ready.end());
    for (const auto& pull : pulls) {
      queues_.work(number, 0, [this, number, rank = pull.rank] { give(number, rank); });
    }
  }

  void give(size_t number, int rank) {
    auto& server = servers_[number];
    if (number == 0) {
      staleness_.add(std::max(0, steps(rank).made - std::ranges::min(server.applied)));
    }
    ranks_.receive(rank, server.device, shard_bytes(), [this, rank] {
      if (--steps(rank).missing > 0) return;
      ranks_.end_wait(rank);
      ranks_.end_step(rank);
      begin_step(rank);
    });
  }

  const SimulatedRun& run_;
  ServedRanks ranks_;
  ServerQueues queues_;
  std::vector<Server> servers_;
  std::vector<Steps> steps_;  // by rank
  StalenessCounts staleness_;
};

}  // namespace

RunSimulation simulate_parameter_servers(const SimulatedRun& run) {
  return ParameterServerRun(run).simulate();
}

}  // namespace troika::plan
