// Parameters that stages on different ranks use, such as a language model's tied embedding.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "troika/comm/group.h"
#include "troika/nn/model.h"
#include "troika/parallel/parameter_store.h"
#include "troika/parallel/pipeline/pipeline_place.h"
#include "troika/parallel/pipeline/stages.h"

namespace troika::parallel {

// Parameters that the same stages use.
struct TiedSet {
  std::vector<int> stages;  // one stage of each pipeline rank that uses them, the owner's first
  std::set<std::string> names;
};
// Returns those of all ranks of the world, in the same order on each: every set is used by several
// pipeline ranks.
std::vector<TiedSet> tied_sets(const nn::Model& model, const StagesOfModel& stages,
                               const PipelinePlace& place);

// Keeps the copies of a parameter equal: all begin with the owner's values, and each step sums
// their gradients. The owner is the rank with the stage whose block owns the parameter.
class TiedParameters {
 public:
  // Makes a group of the ranks that hold each set of parameters, and copies the owners' values.
  // Called by all ranks of the world; blocks.
  TiedParameters(const nn::Model& model, const StagesOfModel& stages, const PipelinePlace& place,
                 const comm::Group& world);

  // Returns the names of the parameters that this rank holds and another rank owns.
  const std::set<std::string>& borrowed() const { return borrowed_; }

  struct Shared : TiedSet {
    comm::Group group;                    // of all replicas of these ranks
    std::vector<at::Tensor> summed = {};  // in place of the parameters, the store's
  };
  // Returns the sets that this rank uses.
  const std::vector<Shared>& shared() const { return shared_; }
  // Has sum_gradients() sum the gradients of these tensors: the parameters of a set, or this rank's
  // shards of them. Shards are summed over the ranks that are the same replica of their stages.
  // Called by all ranks that use the set; blocks.
  void sum(size_t set, const ParameterStore& store);

  // Replaces each gradient of a shared parameter by the sum over the stages. Called by all ranks,
  // after all gradients of a step have been averaged over the replicas of each stage. Blocks.
  void sum_gradients() const;

 private:
  const PipelinePlace& place_;
  const comm::Group world_;
  std::set<std::string> borrowed_;
  std::vector<Shared> shared_;
};

}  // namespace troika::parallel
