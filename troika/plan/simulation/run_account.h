// The activity of the ranks of a simulated run, and the memory that they used.
#pragma once

#include <limits>
#include <set>
#include <vector>

#include "troika/plan/simulation/rank_programs.h"
#include "troika/plan/simulation/run_simulator.h"

namespace troika::plan {

struct PassTimes {
  double begin = 0;
  double end = 0;
  double computed = 0;  // without waits for parameters
};

// Ranks, stages, steps and times are those of the simulation; bytes are of one rank.
class RunAccount {
 public:
  // Both must outlive it.
  RunAccount(const SimulatedRun& run, const RankPrograms& programs);

  void send(int rank, double bytes) { use(rank).sent_bytes += bytes; }
  void receive(int rank, double bytes);
  // Begins the passes of an item. Their inputs have been received.
  void begin_passes(int rank, const ProgramItem& item);
  void end_pass(int rank, int step, const ProgramItem& item, const PassTimes& times);
  void end_update(int rank, int step, double begin, double end);
  // The rank waited for collectives.
  void expose(int rank, double seconds) { use(rank).exposed_seconds += seconds; }
  void end_step(int step, double now);
  // Keeps the span if the run records its trace.
  void record(SimulatedSpan span);

  // Returns the results. The account is then empty.
  RunSimulation finish(const std::vector<LinkTraffic>& traffic);

 private:
  struct Memory {
    double bytes = 0;
    double peak = 0;
    double workspace = 0;               // of the pass that runs
    std::set<int> with_gradients = {};  // its stages that have gradients in this step
  };
  // The passes of a rank in a step.
  struct StepPasses {
    double first = std::numeric_limits<double>::infinity();
    double last = 0;
    double busy = 0;

    double span() const { return last > first ? last - first : 0; }
  };

  RankUse& use(int rank) { return result_.ranks[static_cast<size_t>(rank)]; }
  double& bytes(int rank) { return memory_[static_cast<size_t>(rank)].bytes; }
  void note_peak(int rank);
  // The bytes of the messages of a kind that an item takes.
  double taken_bytes(const ProgramItem& item, layout::ActionKind receive) const;
  // The bytes that a pass takes beyond kept ones.
  double workspace_of(int rank, const layout::Action& pass) const;
  void free_activations(int rank, const layout::Action& pass);
  // Counts the gradients of a stage's parameters from its first backward pass of a step on.
  void add_gradients(int rank, int stage);
  void add_bubbles();

  const SimulatedRun& run_;
  const RankPrograms& programs_;
  std::vector<Memory> memory_;                   // by rank
  std::vector<std::vector<StepPasses>> passes_;  // by step and rank
  RunSimulation result_;
};

}  // namespace troika::plan
