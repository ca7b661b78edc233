// Pipeline parallelism for any nn::Model: ranks hold consecutive blocks, and micro-batches flow
// through them by a schedule (layout/schedules/table.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "troika/comm/world/mesh_groups.h"
#include "troika/nn/model.h"
#include "troika/parallel/exchange.h"
#include "troika/parallel/pipeline/action_times.h"
#include "troika/parallel/pipeline/asynchronous_passes.h"
#include "troika/parallel/pipeline/deferred_batch_norm.h"
#include "troika/parallel/pipeline/micro_batch_source.h"
#include "troika/parallel/pipeline/pipeline_place.h"
#include "troika/parallel/pipeline/pipeline_schedule.h"
#include "troika/parallel/pipeline/stage_messages.h"
#include "troika/parallel/pipeline/stage_tensors.h"
#include "troika/parallel/pipeline/stages.h"

namespace troika::parallel {

class OwnStages;
class PipelineRun;

// Trains a model whose blocks are on several ranks:
//
//   const comm::MeshGroups groups(world, layout::Mesh::parse("pipeline=2 data=-1", world.size()));
//   parallel::Pipeline pipeline(model, groups, {.schedule = "1f1b", .micro_batches = 8});
//   const auto optimizer = optim::make_optimizer(pipeline.parameters(), options);
//   pipeline.zero_grad();
//   const auto loss = pipeline.run(inputs, targets, nn::functional::cross_entropy);
//   pipeline.step(*optimizer);
//
// A step equals, up to rounding, that of one process which accumulates the gradients of the same
// micro-batches. Replicas along the mesh's data axis average their gradients. If the stages have
// different numbers of replicas, the replicas of a stage share the micro-batches
// (pipeline_place.h).
//
// Batch norms normalise by micro-batches, and update their running statistics once a step
// (deferred_batch_norm.h).
//
// All ranks of the world make the same calls, from one thread each. Every call blocks until this
// rank has done its part. A call that waits for another rank throws after the group's timeout; the
// error names the stage, the micro-batch and the direction. After an error the object must not be
// used again.
//
// From construction on, this rank has only the tensors of its own stages: the model's other tensors
// have no memory, read as NaN and cannot be written to (left_out.h). make_whole() gives every rank
// all of them. If the model has no values yet, PipelineOptions::values makes those of this rank's
// stages, so that the construction takes memory for its stages and one tensor.
//
// With PipelineOptions::weights other than `synchronous`, steps overlap: call advance() in place of
// run(). Each stage steps as soon as it has the gradients of a step, and micro-batches use the
// weights that layout::AsynchronousStage names. Batch norms update their running statistics with
// each micro-batch.
//
// If the mesh has a tensor axis, its ranks compute the layers of their stages together
// (tensor/tensor_parallel.h). Each of them sends to the rank at its place on the next stage's axis:
// all of an activation, or its own part, with sequence parallelism its tokens. They must have the
// same samples. Gradient norms count each element of the model once.
//
// Exchanges with shards (PipelineOptions::make_exchange) shard a stage over its replicas: ZeRO. A
// step then reduces a stage's gradients once, after its last backward pass, and with stage 3
// gathers its parameters once, before its first forward pass.
class Pipeline : public ParameterStore {
 public:
  // Throws Error(usage) if the schedule or the cut does not fit the model's blocks, and if stages
  // of a pipeline without flushes share a parameter, before any communication. Then all replicas
  // get the values of the first one.
  Pipeline(std::shared_ptr<nn::Model> model, const comm::MeshGroups& groups,
           const PipelineOptions& options);
  ~Pipeline() override;

  // Drops the gradients of this rank's parameters.
  void zero_grad();
  // Runs the step's passes, and averages and sums gradients: then .grad has the step's gradients.
  // Runs only micro-batches [begin, end), 0 <= begin < end. The sum of the gradients of earlier
  // ones must be in .grad; `end` is less than PipelineOptions::micro_batches in a shorter step.
  // Does not call the source's functions after it has returned. Returns this rank's losses by
  // micro-batch: one element each, without a graph; undefined for micro-batches of which this rank
  // does not run the last stage.
  std::vector<at::Tensor> run(MicroBatchSource& source) {
    return run(source, 0, options_.micro_batches);
  }
  std::vector<at::Tensor> run(MicroBatchSource& source, int begin, int end);
  // Splits the batch, the model's single input and the targets, into micro-batches along dim 0, as
  // at::Tensor::tensor_split does, and weights each by its number of samples. `loss` returns the
  // mean over a micro-batch. Returns the part of the batch's mean loss that this rank has computed,
  // float64: all of it on the last stage, 0 on other ranks.
  using Loss = std::function<at::Tensor(const at::Tensor& outputs, const at::Tensor& targets)>;
  at::Tensor run(const at::Tensor& inputs, const at::Tensor& targets, const Loss& loss);
  // For a pipeline without flushes: runs this rank's passes up to the end of the next step's last
  // backward pass, and averages gradients over replicas: then .grad has the step's gradients, and
  // step() must follow. `left` is the number of micro-batches from the first one of the step to the
  // next drain, the same on all ranks. The drain may move forward between two steps, but not to
  // fewer micro-batches than layout::AsynchronousPipeline::most_ahead() after the first of the two.
  // `source` counts micro-batches from 0 at each drain, and must be the same object from one drain
  // to the next. Returns the losses of the step's micro-batches that a rank of the last stage runs.
  // If replicas share the micro-batches, the source has the micro-batches of all.
  std::vector<at::Tensor> advance(MicroBatchSource& source, int64_t left);
  // Returns the number of micro-batches, at least `count`, from the first one of the step up to the
  // last one that advance() takes from the source while it runs `count` micro-batches to their end.
  int64_t reach(int64_t count, int64_t left) const;
  // Returns the number of micro-batches of this rank's next step, which with
  // PipelineOptions::steps_by_replicas differs between stages.
  int64_t in_step(int64_t left) const;
  // Returns the learning rate of this rank's stage relative to that of the run.
  double learning_rate_factor() const;
  // Runs forward passes only, without gradients, on any number of the source's micro-batches. Calls
  // `done` with the outputs or output loss of each micro-batch, in order, on ranks that run the
  // last stage. Does not call the source's loss functions. The caller must set the model to eval
  // mode.
  void evaluate(MicroBatchSource& source, int micro_batches,
                const std::function<void(int micro_batch, nn::Tensors outputs)>& done);
  // Runs forward passes only, without gradients. Each updates the running statistics of the batch
  // norms in its stage, as a step of this micro-batch alone would. The caller must set the model to
  // training mode. Called by all ranks; blocks. Throws Error(usage) if replicas share
  // micro-batches.
  void update_batch_norms(MicroBatchSource& source, int micro_batches);

  // The trained parameters of this rank's stages, or the parts of them that it owns.
  std::vector<optim::Parameter> parameters() const override;
  std::vector<at::Tensor> gradients() const override;
  bool counts(const std::string& name) const override;
  const ParameterCut* cut_of(const std::string& name) const override;
  // True: a rank's stages may be empty, or have only blocks without parameters.
  bool may_be_empty() const override { return true; }
  bool shards_parameters() const override;
  // Reduces over all stages.
  const GroupReducer& reducer() const override;
  // Reduces over the replicas of this rank's stages.
  const GroupReducer& shards_reducer() const override;
  void complete_sums(const at::Tensor& sums) const override;
  // That of the exchange of this rank's only part, if it has one (PipelineOptions::one_part).
  std::unique_ptr<optim::FlatOptimizer> own_optimizer() override;
  void step_by(const std::function<void()>& update) override;
  void spread_parameters() override;
  void gather_parameters() override;
  void synchronize_replicas() override;
  void make_whole() override;
  void fetch_states() override;
  // Returns the numbers of the exchange of this rank's first part.
  std::vector<std::pair<std::string, double>> take_statistics() override;

  // A part of the parameters and buffers of this rank's stages: each tensor is in one part.
  struct OwnExchange {
    std::string
        name;  // of the part, see StagePart; different from those of this rank's other parts
    torch::nn::Module& module;
    Exchange& exchange;
  };
  // The references are valid as long as this object lives.
  std::vector<OwnExchange> exchanges() const;
  // Returns the names of the parameters that this rank holds and another rank owns.
  const std::set<std::string>& borrowed() const;

  const layout::Schedule& schedule() const { return schedule_; }
  const StagesOfModel& stages() const { return stages_; }
  const PipelinePlace& place() const { return place_; }
  // The most micro-batches that this rank had between forward and backward passes in the last run,
  // over all its stages; of a pipeline without flushes, so far.
  size_t most_active() const { return most_active_; }
  // The most versions of this rank's weights that a pipeline without flushes has kept at once; 1
  // for other pipelines.
  size_t most_versions() const;
  // The times of the last run().
  const ActionTimes& times() const { return times_; }

 protected:
  // Adds in the order of the model's parameters, so the cut does not change bits.
  double squares_of_gradients() const override;
  double squares_of_stage_gradients() const override;

 private:
  class OverStages;

  std::unique_ptr<OverStages> make_reducer() const;
  // For run_forward().
  layout::Schedule forward_schedule() const;
  // Implements evaluate() and update_batch_norms().
  void run_forward(MicroBatchSource& source, int micro_batches, bool updates_batch_norms,
                   const std::function<void(int micro_batch, nn::Tensors outputs)>& done);
  // Throws Error(usage) if the last run ended with an error, or micro-batches are in flight.
  void start();
  PipelineRun make_run(MicroBatchSource& source, StageMessages& messages, ActionTimes& times);
  c10::Device device() const;  // of the model's parameters
  StageMessages make_messages(const comm::MeshGroups& groups,
                              const layout::Schedule& schedule) const;
  // In asynchronous_pipeline.cpp:
  void refuse_shared_parameters() const;
  void make_asynchronous();
  void begin_asynchronous_step();

  const std::shared_ptr<nn::Model> model_;
  const PipelineOptions options_;
  comm::Group world_;
  layout::Schedule schedule_;
  const StagesOfModel stages_;
  const PipelinePlace place_;
  std::unique_ptr<StageTensors> tensors_;
  std::unique_ptr<OwnStages> own_;
  std::unique_ptr<OverStages> reducer_;
  std::unique_ptr<DeferredBatchNorm> batch_norms_;
  struct Messages {
    std::unique_ptr<StageMessages> training, forward;
  };
  Messages messages_;
  std::unique_ptr<AsynchronousPasses> asynchronous_;  // null: flushes before each step
  ActionTimes times_;
  size_t most_active_ = 0;
  bool is_running_ = false;  // or has ended with an error
};

}  // namespace troika::parallel
