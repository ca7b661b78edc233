// Ranks that compute and exchange values with servers: what the simulations of such runs share.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "troika/plan/simulation/cluster_links.h"
#include "troika/plan/simulation/disturbed_times.h"
#include "troika/plan/simulation/rank_programs.h"
#include "troika/plan/simulation/run_simulator.h"
#include "troika/plan/simulation/timeline.h"

namespace troika::plan {

// Each rank has the whole model, on its own device. Times are seconds from the beginning.
class ServedRanks {
 public:
  using Call = Timeline::Call;

  // A pass of a rank in a step, and the seconds for which it computes.
  struct Pass {
    const ProgramItem* item = nullptr;
    double seconds = 0;
  };

  // `run` must outlive it.
  explicit ServedRanks(const SimulatedRun& run);

  const SimulatedRun& run() const { return run_; }
  const StageWork& work() const { return run_.stage(0); }
  const ClusterLinks& links() const { return links_; }
  Timeline& timeline() { return timeline_; }
  double now() const { return timeline_.now(); }
  int ranks() const { return programs_.ranks(); }

  // Returns the passes of a step, in order.
  std::vector<Pass> passes(int rank, int step) const;
  // Returns the seconds of the passes of micro-batch number `number` of pass `pass` over a batch.
  double batch_seconds(int rank, int pass, int number) const;
  // Returns the seconds of a rank's optimizer for this share of the parameters.
  double optimizer_seconds(int rank, double share) const;

  // Computes, then calls `then`. Each second in which messages of the rank are under way adds
  // 1 - overlap, as in simulate_run().
  void compute(int rank, double seconds, Call then);
  // Between these calls, a message of the rank is under way.
  void begin_message(int rank);
  void end_message(int rank);
  // Between these calls, the rank waits for servers.
  void begin_wait(int rank);
  void end_wait(int rank);
  // Counts bytes that a rank sends to servers, or that have come from them.
  void count_sent(int rank, double bytes) { use(rank).sent_bytes += bytes; }
  void count_received(int rank, double bytes) { use(rank).received_bytes += bytes; }
  // Also send them to a server's device, or from it (Timeline::send()).
  void send(int rank, int device, double bytes, Call arrives);
  void receive(int rank, int device, double bytes, Call arrives);
  // Keeps a span that ends now, if the run records its trace.
  void record(int rank, const char* track, const std::string& name, double begin, int bucket = -1,
              double bytes = -1);
  // Counts a pass, or a part of one, that ends now, for the makespan.
  void count_pass(int rank, double begin);
  // Also records it.
  void record_pass(int rank, const ProgramItem& item, double begin);

  // The rank has made a step. The simulation ends when the ranks together have made the run's steps
  // of each of them.
  void end_step(int rank);
  // Makes all calls. Returns the results: a step is as many as there are ranks, in the order in
  // which they end.
  RunSimulation simulate();

 private:
  struct Computing {
    double begin = -1;   // -1: the rank does not compute
    double seconds = 0;  // without messages
    double left = 0;     // of these, at time `since`
    double since = 0;
    size_t version = 0;  // counts the changes of its end
    Call then = {};
  };
  struct Rank {
    int step = 0;           // that has not ended
    double step_begin = 0;  // the end of the step before
    int messages = 0;       // under way
    Computing computing = {};
    double waits_since = -1;  // -1: it does not wait
  };

  Rank& rank(int number) { return ranks_[static_cast<size_t>(number)]; }
  RankUse& use(int number) { return result_.ranks[static_cast<size_t>(number)]; }
  // Returns the seconds of computing that are done in a second.
  double rate(int number) { return rank(number).messages > 0 ? run_.overlap : 1; }
  void change_messages(int number, int by);
  void schedule_end(int number);
  void end_computing(int number);

  const SimulatedRun& run_;
  const ClusterLinks links_;
  const RankPrograms programs_;
  const DisturbedTimes times_;
  Timeline timeline_;
  std::vector<Rank> ranks_;
  std::vector<double> ends_;                                      // of steps of all ranks
  double first_begin_ = std::numeric_limits<double>::infinity();  // of the passes in first steps
  RunSimulation result_;
};

// Collects numbers for Staleness.
class StalenessCounts {
 public:
  void add(int64_t staleness);
  Staleness staleness() const;

 private:
  int64_t count_ = 0, sum_ = 0, most_ = 0;
};

// Counts how many pushes of others the parameters lack from which replicas compute what they push.
class PushCounts {
 public:
  explicit PushCounts(int replicas) : own_(static_cast<size_t>(replicas), 0) {}

  // Returns the pushes of the other replicas so far.
  int64_t of_others(int replica) const { return total_ - own_[static_cast<size_t>(replica)]; }
  // Counts a push from parameters that had `seen` pushes of others.
  void push(int replica, int64_t seen);
  Staleness staleness() const { return counts_.staleness(); }

 private:
  std::vector<int64_t> own_;  // by replica
  int64_t total_ = 0;
  StalenessCounts counts_;
};

}  // namespace troika::plan
