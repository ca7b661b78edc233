// One run of a pipeline's passes: the tensors between stages, and what each action does.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "troika/nn/model.h"
#include "troika/nn/precision.h"
#include "troika/parallel/pipeline/action_times.h"
#include "troika/parallel/pipeline/micro_batch_source.h"
#include "troika/parallel/pipeline/pipeline_place.h"
#include "troika/parallel/pipeline/stage_messages.h"
#include "troika/parallel/pipeline/stage_passes.h"
#include "troika/parallel/pipeline/stages.h"
#include "troika/parallel/tensor/lanes.h"

namespace troika::parallel {

// Holds tensors from one stage of this rank to another, and tensors that are not sent yet. Receives
// a tensor of another rank when the pass that needs it begins.
class PipelineRun {
 public:
  // Everything must outlive the run.
  struct Parts {
    const nn::Model& model;
    const StagesOfModel& stages;
    const PipelinePlace& place;
    StageMessages& messages;
    std::function<StagePasses&(int stage)> passes;  // of this rank's stages
    MicroBatchSource& source;
    std::optional<nn::NumericPrecision> precision;  // PipelineOptions::precision
    c10::DeviceType device;                         // of the parameters
    ActionTimes& times;
  };
  explicit PipelineRun(const Parts& parts) : parts_(parts) {}

  // Runs a forward pass without a loss. Returns the outputs if the stage is the last one.
  nn::Tensors forward(int stage, int micro_batch);
  // Runs a forward pass and, on the last stage, the loss. Returns the loss without its graph;
  // undefined on other stages.
  at::Tensor train_forward(const layout::Action& pass);
  // The same for two passes, at the same time: receives the inputs of both before. `first` begins.
  std::array<at::Tensor, 2> train_forward(const layout::Action& first, const layout::Action& second,
                                          Lanes& lanes);
  // Runs a backward pass; with `splits`, only the part for the inputs.
  void backward(const layout::Action& action, bool splits);
  void backward_weight(const layout::Action& action);
  void send(const layout::Action& action);

 private:
  // The giving stage, the taking stage, and the micro-batch.
  using Route = std::tuple<int, int, int>;
  using Waiting = std::map<Route, nn::Tensors>;

  at::Tensor forward_with_loss(const layout::Action& pass, nn::Tensors inputs);
  nn::Tensors run_blocks(int stage, int micro_batch, nn::Tensors inputs);
  nn::Tensors inputs(int stage, int micro_batch);
  nn::Tensors take(Waiting& waiting, const layout::Action& receive, size_t count);
  // Returns the gradients of a stage's outputs, summed over the stages that took them.
  nn::Tensors output_gradients(int stage, int micro_batch);
  bool is_last(int stage) const { return stage + 1 == static_cast<int>(parts_.stages.size()); }

  void start_autocast(std::optional<nn::Autocast>& autocast) const;

  const Parts parts_;
  Waiting activations_, gradients_;
};

}  // namespace troika::parallel
