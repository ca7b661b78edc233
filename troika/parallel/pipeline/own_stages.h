// The stages of this rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "troika/comm/world/mesh_groups.h"
#include "troika/layout/schedules/schedule.h"
#include "troika/nn/model.h"
#include "troika/parallel/exchange.h"
#include "troika/parallel/pipeline/pipeline_place.h"
#include "troika/parallel/pipeline/pipeline_schedule.h"
#include "troika/parallel/pipeline/stage_passes.h"
#include "troika/parallel/pipeline/stages.h"
#include "troika/parallel/pipeline/tied_parameters.h"
#include "troika/parallel/tensor/tensor_parallel.h"

namespace troika::parallel {

// A part of a stage's parameters and buffers, and the exchange of its gradients.
struct StagePart {
  // "stage.BEGIN-END", by the stage's blocks, or "tied.NAME", by the first of the parameters that
  // stages on several ranks use. A stage whose replicas shard it has a part "uneven.BEGIN-END" if
  // the ranks of a tensor axis hold shards of different sizes of some of its parameters. So its
  // other part has the same layout on all of them.
  std::string name;
  std::shared_ptr<torch::nn::Module> module;
  std::unique_ptr<Exchange> exchange;
};

struct OwnStage {
  int index;
  StagePasses passes;
  // All that the stage uses, except for the tensors of an earlier stage of this rank. Parameters
  // that other ranks use, too, are parts of their own, so that their shards are alike on all these
  // ranks.
  std::vector<StagePart> parts = {};
  bool borrows_here = false;     // with an earlier stage of this rank
  bool splits_backward = false;  // in this run
  size_t last_backward = 0;      // index of the action that completes the stage's gradients
};

// Makes the exchanges of this rank's stages, and calls them in a step. All ranks of the world make
// the same calls; calls that exchange gradients or parameters block.
class OwnStages {
 public:
  // The references must outlive this object. `tensor` cuts the layers; null: they are whole. Throws
  // Error(usage) if ranks share a parameter whose replicas are sharded and not equally many.
  OwnStages(const nn::Model& model, const StagesOfModel& stages, const PipelinePlace& place,
            const PipelineOptions& options, const comm::MeshGroups& groups,
            const TensorParallel* tensor);

  OwnStage& operator[](int stage);
  const std::vector<std::unique_ptr<OwnStage>>& all() const { return stages_; }
  const TiedParameters& tied() const { return *tied_; }
  // The exchange of one of the stages, for what is the same for all of them.
  const Exchange& any_exchange() const { return *stages_.front()->parts.front().exchange; }
  void for_each_part(const std::function<void(StagePart&)>& visit) const;
  // The tensors that the exchanges step.
  std::vector<optim::Parameter> parameters() const;
  // The number of micro-batches between forward and backward passes, over all stages.
  size_t active() const;

  // Begins a step of micro-batches [begin, end). `actions` are the actions of this rank.
  void begin(const std::vector<layout::Action>& actions, int begin, int end);
  // The part of begin() without a list of actions: if replicas share the micro-batches, those
  // without one in [begin, end) count as if they had no gradient.
  void share(int64_t begin, int64_t end);
  // Lets all exchanges only accumulate, except for those of the stage whose gradients the action
  // completes. Other stages are included because the pass may add to a parameter that its stage
  // shares with another stage of this rank.
  std::deque<GradientSync::NoSync> accumulate_but(size_t action) const;
  // Lets all exchanges only accumulate.
  std::deque<GradientSync::NoSync> accumulate() const;
  void gather(int stage);
  // Averages or, if replicas share the micro-batches, sums the stage's gradients over its replicas.
  void finish(int stage);

 private:
  void add_parts(OwnStage& stage, const PipelineOptions& options, const comm::Group& data,
                 const TensorParallel* tensor, std::set<std::string>& seen);
  void plan_backward(const std::vector<layout::Action>& actions);
  // The number of replicas that share the micro-batches; 1 if each has its own ones.
  int own_replicas() const;
  void weigh(const std::set<int>& active);

  const nn::Model& model_;
  const StagesOfModel& of_model_;
  const PipelinePlace& place_;
  std::vector<std::unique_ptr<OwnStage>> stages_;
  std::unique_ptr<TiedParameters> tied_;
  int summed_replicas_ = 1;  // those that have a gradient in this step, if they share micro-batches
};

}  // namespace troika::parallel
