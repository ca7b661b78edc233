// Parameters that stages on different ranks use, such as a language model's tied embedding.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "troika/comm/group.h"
#include "troika/nn/model.h"
#include "troika/parallel/pipeline/pipeline_place.h"
#include "troika/parallel/pipeline/stages.h"

namespace troika::parallel {

// Keeps the copies of a parameter equal: all begin with the owner's values, and each step sums
// their gradients. The owner is the rank with the stage whose block owns the parameter.
class TiedParameters {
 public:
  // Makes a group of the ranks that hold each set of parameters, and copies the owners' values.
  // Called by all ranks of the world; blocks.
  TiedParameters(const nn::Model& model, const StagesOfModel& stages, const PipelinePlace& place,
                 const comm::Group& world);

  // Replaces each gradient of a shared parameter by the sum over the stages. Called by all ranks,
  // after all gradients of a step have been averaged over the replicas of each stage. Blocks.
  void sum_gradients() const;
  // Whether ranks share a parameter; the same on all ranks.
  bool any() const { return any_; }
  // Returns the names of the parameters that this rank holds and another rank owns.
  const std::set<std::string>& borrowed() const { return borrowed_; }

 private:
  struct Shared {
    comm::Group group;
    std::vector<at::Tensor> parameters;
  };

  bool any_ = false;
  bool contributes_ = false;  // whether this rank is the first of its stages' replicas
  std::set<std::string> borrowed_;
  std::vector<Shared> shared_;
};

}  // namespace troika::parallel
