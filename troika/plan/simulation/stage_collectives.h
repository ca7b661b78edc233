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

// A collective as all ranks of a place carry it out.
struct Recipe {
  std::string name;  // of the span in traces
  int bucket = -1;
  double bytes = 0;
  std::vector<CollectivePhase> phases = {};  // none: takes no time
};

// The exchanges of a stage in a step.
struct StageRecipes {
  std::vector<Recipe> reductions = {};           // gradients, by bucket
  std::optional<Recipe> gather_after_step = {};  // ZeRO stages 1 and 2
  std::optional<Recipe> gather = {};             // ZeRO stage 3
  std::vector<Recipe> averages = {};             // of parameters, with local_steps
};

// Returns the recipes of each stage.
std::vector<StageRecipes> make_recipes(const SimulatedRun& run, const RankPrograms& programs,
                                       const ClusterLinks& links);

// The collectives of the ranks of one place, which begin in one order: when all ranks have issued
// the next one, and the one before it has ended.
class CollectiveQueue {
 public:
  struct Running {
    const Recipe* recipe = nullptr;
    std::vector<double> issued;  // by member: when; the time of the last event for those missing
    size_t missing = 0;
    size_t next_phase = 0;
    bool has_begun = false;
    double before = 0;  // when the collective before it ended
  };

  explicit CollectiveQueue(size_t members) : issued_(members, 0) {}

  // A member issues its next collective. `recipe` must be the same for all members, and outlive the
  // queue's use of it. Returns the number of the collective, from 0.
  size_t issue(size_t member, const Recipe& recipe, double now);
  // Returns the collective that all have issued and whose turn it is; null if there is none.
  Running* current();
  // Ends current().
  void finish(double now);
  // How many have ended.
  size_t finished() const { return finished_; }

 private:
  std::vector<size_t> issued_;  // by member: how many
  std::deque<Running> waiting_;
  size_t finished_ = 0;
  double last_end_ = 0;
};

}  // namespace troika::plan
