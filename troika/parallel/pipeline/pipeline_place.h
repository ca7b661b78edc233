// The ranks that run the stages of a schedule.
#pragma once

#include <vector>

#include "troika/layout/mesh.h"
#include "troika/layout/schedules/schedule.h"

namespace troika::parallel {

// Places the stages of a schedule on the ranks of a mesh. If all pipeline ranks have equally many
// replicas, each replica of the pipeline has micro-batches of its own. Otherwise the replicas share
// the micro-batches: micro-batch i is for replica i mod r of a pipeline rank with r replicas
// (PipeDream's 1F1B-RR: Narayanan et al., SOSP 2019, section 3.2).
class PipelinePlace {
 public:
  // Throws Error(usage) unless the schedule has a line of actions for each rank of the mesh's
  // pipeline axis.
  PipelinePlace(layout::Mesh mesh, int rank, const layout::Schedule& schedule);

  const layout::Mesh& mesh() const { return mesh_; }
  int stages() const { return static_cast<int>(pipeline_ranks_.size()); }
  // Returns the rank of the pipeline axis that runs a stage.
  int pipeline_rank(int stage) const { return pipeline_ranks_[static_cast<size_t>(stage)]; }
  bool is_mine(int stage) const { return pipeline_rank(stage) == own_[layout::Axis::pipeline]; }
  std::vector<int> own_stages() const;
  // Returns the world's rank that runs a micro-batch of a stage, for this rank's replica.
  int rank(int stage, int micro_batch) const;
  // Returns all ranks of the world that hold the same part of a stage as this rank: one for each
  // replica and place on its context axis.
  std::vector<int> replicas(int stage) const;
  // This rank's position among replicas().
  int replica() const {
    return own_[layout::Axis::data] * mesh_.size(layout::Axis::context) +
           own_[layout::Axis::context];
  }
  bool shares_micro_batches() const { return mesh_.has_uneven_stages(); }
  // Returns this rank's actions.
  std::vector<layout::Action> actions(const layout::Schedule& schedule) const;

 private:
  layout::Mesh mesh_;
  layout::Coordinates own_;
  std::vector<int> pipeline_ranks_;  // by stage
};

}  // namespace troika::parallel
