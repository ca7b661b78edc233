// The collectives of a step, and the order in which the ranks of a stage carry them out.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "troika/plan/simulation/collectives.h"
#include "troika/plan/simulation/rank_programs.h"
#include "troika/plan/simulation/simulated_work.h"

namespace troika::plan {

// A collective of a group of ranks (RankPrograms).
struct Recipe {
  std::string name;  // of the span in traces
  int bucket = -1;
  double bytes = 0;
  std::vector<CollectivePhase> phases = {};  // none: takes no time
};

// The collectives of a stage in a step.
struct StageRecipes {
  std::vector<Recipe> reductions = {};           // gradients, by bucket
  std::optional<Recipe> gather_after_step = {};  // ZeRO stages 1 and 2
  std::optional<Recipe> gather = {};             // ZeRO stage 3
  std::vector<Recipe> averages = {};             // of parameters, with local_steps
};

// The sums of a pass over a tensor axis and its messages on a context axis, as one collective of
// the ranks of both axes. Attention computes beside the messages of rings, and a backward pass that
// is not in two parts beside its sums: the share of a message that this hides is left out.
struct PassSums {
  Recipe recipe = {};
  double alone_seconds = 0;  // without other flows on its links
};

// A part of a forward pass that takes turns with another one.
struct PassTurn {
  double share = 0;    // of what the pass computes
  Recipe recipe = {};  // of the collective at its end; without phases for the last part
};

// The recipes of all ranks.
class Recipes {
 public:
  // `programs` must outlive it.
  Recipes(const SimulatedRun& run, const RankPrograms& programs, const ClusterLinks& links);

  // Returns the collectives of a rank on the data and the context axis.
  const StageRecipes& of(int rank, int stage) const;
  // Returns the collective of a rank's pass on the tensor and the context axis; null if the pass
  // has none.
  const PassSums* sums(int rank, const layout::Action& pass) const;
  // Returns the parts of a rank's forward pass; null if it does not take turns.
  const std::vector<PassTurn>* turns(int rank, const layout::Action& pass) const;
  // Returns the seconds of the sums of an item's passes, without other flows on their links.
  double sums_seconds(int rank, const ProgramItem& item) const;

 private:
  struct StageSums {
    PassSums forward, backward, backward_input;
    std::vector<PassTurn> turns;  // of forward passes, if they take turns
  };
  const RankPrograms& programs_;
  // By stage, and by RankPrograms::Member::number.
  std::vector<std::vector<StageRecipes>> stages_;
  std::vector<std::vector<StageSums>> sums_;
};

// The collectives of the ranks of one group, in order. A collective begins when all ranks have
// issued it and the previous collective has ended.
class CollectiveQueue {
 public:
  struct Running {
    const Recipe* recipe = nullptr;
    std::vector<double> issued;  // by member: the time of issue; for members that have not issued
                                 // it, that of the last event
    size_t missing = 0;
    size_t next_phase = 0;
    bool has_begun = false;
    double began = 0;
    double before = 0;  // when the previous collective ended

    const CollectivePhase& phase() const { return recipe->phases[next_phase]; }
  };

  explicit CollectiveQueue(size_t members) : issued_(members, 0) {}

  // Called when a member issues its next collective. `recipe` must be the same for all members, and
  // must stay valid until the collective has ended. Returns the number of the collective, from 0.
  size_t issue(size_t member, const Recipe& recipe, double now);
  // Returns the collective that is running or can begin; null if there is none.
  Running* current();
  // Ends current().
  void finish(double now);
  // Marks current() as begun. Returns false if it has begun before, or if there is none.
  bool begin(double now);
  // Returns the seconds during which collectives have run.
  double busy(double now) const;
  bool runs() const { return !waiting_.empty() && waiting_.front().has_begun; }
  // Returns the number of collectives that have ended.
  size_t finished() const { return finished_; }

 private:
  std::vector<size_t> issued_;  // by member: number of collectives
  std::deque<Running> waiting_;
  size_t finished_ = 0;
  double last_end_ = 0;
  double busy_ = 0;  // seconds of the collectives that have ended
};

}  // namespace troika::plan
