// The tensors of a model that a rank of a pipeline holds.
#pragma once

#include <memory>
#include <vector>

#include "troika/comm/world/mesh_groups.h"
#include "troika/nn/model.h"
#include "troika/parallel/pipeline/left_out.h"
#include "troika/parallel/pipeline/pipeline_place.h"
#include "troika/parallel/pipeline/pipeline_schedule.h"
#include "troika/parallel/pipeline/stages.h"
#include "troika/parallel/tensor/lanes.h"
#include "troika/parallel/tensor/tensor_parallel.h"

namespace troika::parallel {

// Keeps on this rank only the tensors of its stages and, of these, only its shards if the mesh has
// a tensor axis. Called by all ranks of the world; the functions block.
class StageTensors {
 public:
  // Makes the values of these tensors if PipelineOptions::values is set. The references must
  // outlive this object. Throws what TensorParallel's constructor throws.
  StageTensors(nn::Model& model, const StagesOfModel& stages, const PipelinePlace& place,
               const PipelineOptions& options, const comm::MeshGroups& groups);
  // Without make_whole(), parameters that are cut over the tensor axis get their sizes back and are
  // left out (leave_out()), because shards are useless without the axis.
  ~StageTensors();
  StageTensors(const StageTensors&) = delete;
  StageTensors& operator=(const StageTensors&) = delete;

  // Returns the layers' cut over the tensor axis; null: the mesh has none.
  const TensorParallel* tensor() const { return tensor_.get(); }
  // Returns what runs two forward passes at the same time; null without
  // PipelineOptions::tensor_overlap.
  Lanes* lanes() const { return lanes_.get(); }
  // Takes the tensors that the exchanges of this rank's stages step, once, if there is a tensor
  // axis.
  void take_stepped(std::vector<optim::Parameter> parameters);
  // Returns them as tensors that keep their shapes after make_whole(). They have gradients between
  // finish_backward() and drop_gradients().
  const std::vector<optim::Parameter>& stepped() const { return stepped_; }
  // Calls TensorParallel::finish_backward() if there is a tensor axis. Called once a step, after
  // averages over replicas and sums over stages.
  void finish_backward();
  void drop_gradients();
  // Returns the ranks of this rank's tensor axis; only this rank if there is none.
  const comm::Group& axis() const { return axis_; }

  // Gives the model on this rank all tensors, whole, with their current values. Without a tensor
  // axis, may be called again.
  void make_whole();
  // Whether make_whole() was called.
  bool is_whole() const { return left_out_->is_restored(); }

 private:
  nn::Model& model_;
  const StagesOfModel& stages_;
  const PipelinePlace& place_;
  const comm::Group axis_;
  // The ranks at this rank's place on the tensor axis: together they hold its shards of the model.
  comm::Group layer_;
  std::unique_ptr<TensorParallel> tensor_;
  std::unique_ptr<Lanes> lanes_;
  std::unique_ptr<LeftOut> left_out_;
  std::vector<optim::Parameter> trained_, stepped_;
};

}  // namespace troika::parallel
