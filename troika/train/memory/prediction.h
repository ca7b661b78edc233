// Predicts the memory of a training run before it starts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "troika/data/dataset.h"
#include "troika/layout/plan.h"
#include "troika/nn/model.h"
#include "troika/parallel/context/context_parallel.h"
#include "troika/plan/memory/memory_parts.h"
#include "troika/train/memory/cut_layers.h"
#include "troika/train/memory/pass_memory.h"
#include "troika/train/memory/stage_memory.h"
#include "troika/train/options/options.h"

namespace troika::train {

class PipelineShapes;

struct MemoryChoice {
  std::string strategy;
  std::string precision;
  std::string recompute;
  int ranks = 1;
  int64_t batch = 0;  // samples on each rank; 0: from the options
  int nodes = 1;      // with equal shares of the ranks, as far as possible
  // The most bytes of a pass that are in memory at once, if others are offloaded; not for
  // pipelines.
  std::optional<double> most_in_pass = {};

  bool operator==(const MemoryChoice&) const = default;
};

using plan::MemoryParts;

struct MemoryPrediction {
  MemoryChoice choice = {};
  MemoryParts step = {};
  // The peak between steps: zero3 has all parameters whole, and buckets may be rebuilt.
  double between_steps = 0;
  // The peak before the first step: the model as constructed, and its replacement.
  double start = 0;
  // The peak in a validation.
  double validation = 0;

  // In a pipeline: the most bytes of activations, their gradients, and messages between stages at
  // any time in a step.
  double activation_peak = 0;
  // In a pipeline whose stages have different numbers of replicas: the bytes of `step` and
  // `between_steps` that only the first replica of the stage has, as it alone runs evaluations.
  double of_first_replica = 0;

  // The most that the back end takes for messages: comm::most_mailbox_bytes().
  double mailboxes = 0;
  // The other memory of the process beyond its tensors and the libraries loaded at its start.
  double overhead = 0;

  // The peak of tensor bytes without validations.
  double training_peak() const { return training_peak_of(0); }
  // The same on the `replica`-th replica of a pipeline's stage, counted from 0.
  double training_peak_of(int replica) const;
  // The peak of tensor bytes with validations.
  double peak() const { return std::max(training_peak(), validation); }
  // peak() plus mailboxes and overhead; without the libraries.
  double process() const { return peak() + mailboxes + overhead; }
};

// Predicts for one configuration's model and batches, with its optimizer. Measures activations in
// passes over small batches; derives all other parts from shapes. Needs
// compat::count_tensor_memory(), and no other thread that makes tensors at the same time. The
// constructors' arguments must outlive this object. All samples of the batches are the data set's
// first sample. On a tensor axis, predicts for its first rank, which has at least as much of each
// layer as the others.
class MemoryPredictor {
 public:
  // Predicts for the model in options.model, with sizes from the data set's samples.
  MemoryPredictor(const TrainOptions& options, const data::Dataset& dataset);
  // Predicts for a program's task. Until this object is destroyed, the parameters, buffers and
  // gradients of its module are replaced by tensors without memory. Steps that read numbers from
  // tensors get zeros.
  MemoryPredictor(const TrainOptions& options, const data::Dataset& dataset, Task& task);
  ~MemoryPredictor();
  MemoryPredictor(const MemoryPredictor&) = delete;
  MemoryPredictor& operator=(const MemoryPredictor&) = delete;

  // The choice that the options make on `ranks` ranks, on trainer.num_nodes nodes. Throws
  // Error(usage) if they name a plan for another model.
  MemoryChoice configured(int ranks) const;
  // Why a choice cannot be predicted; empty if it can.
  std::string why_not(const MemoryChoice& choice) const;
  // Throws Error(usage) if the choice cannot be predicted. Changes the state of the random
  // generator. For a pipeline, returns the prediction of the rank whose process needs most.
  MemoryPrediction predict(const MemoryChoice& choice);
  // The same for each rank of the pipeline axis; a single one if there is no pipeline.
  std::vector<MemoryPrediction> predict_ranks(const MemoryChoice& choice);
  // Samples on each rank.
  int64_t batch_of(const MemoryChoice& choice) const;
  // The policies of recomputation of a pipeline's stages, see layout::recompute_policies(). With a
  // budget, which bounds MemoryPrediction::activation_peak of each rank: the first of none, ...,
  // every_4, every_2, full and sqrt with which the rank's stages fit. Throws Error(usage) if a rank
  // fits with none of them. Requires a choice that can be predicted.
  std::string recompute_of_stages(const MemoryChoice& choice);
  // The plan of a choice, with all ranks on one host.
  layout::Plan plan(const MemoryChoice& choice) const;

 private:
  // A tensor of a program's module and its original data.
  struct Spared {
    at::Tensor tensor;
    at::Tensor data;
    at::Tensor gradient;
  };

  // Bytes of the model before its layers are cut.
  struct WholeBytes {
    double made = 0;     // of its parameters when they are made, in float32
    double largest = 0;  // of its largest tensor
  };

  // tensor_prediction.cpp
  WholeBytes whole_bytes() const;
  // Why a plan with a tensor or context axis cannot be run; empty if it can, or has neither.
  std::string why_not_cut(const layout::Plan& plan, int ranks) const;
  // Cuts the model as the plan's tensor axis does.
  CutLayers cut_layers(const layout::Plan& plan);
  // Cuts the samples as the plan's context axis does, for its first rank; null: it has none.
  std::unique_ptr<parallel::ContextParallel> cut_samples(const layout::Plan& plan);
  layout::RecomputePlan recompute_of(const MemoryChoice& choice,
                                     const nn::NumericPrecision& precision) const;
  // Expects the model as cut_layers() and cut_samples() leave it for the choice's plan.
  const PassMemory& pass_of(const MemoryChoice& choice);
  MemoryPrediction predict_one_stage(const MemoryChoice& choice);
  // pipeline_prediction.cpp
  std::vector<MemoryPrediction> predict_pipeline(const MemoryChoice& choice);
  const std::vector<StageMemory>& stages_of(const MemoryChoice& choice,
                                            const PipelineShapes& shapes);
  // Returns the batch of one sample repeated `size` times.
  data::Batch some_batch(int64_t size) const;
  double batch_bytes(int64_t samples) const;
  // The sizes of batches between which activations are interpolated.
  std::pair<int64_t, int64_t> sample_batches(const MemoryChoice& choice) const;
  double overhead(const MemoryParts& step) const;
  double optimizer_bytes(const nn::NumericPrecision& precision, int64_t elements) const;
  // The bytes of gradients that the backward pass allocates and that a bucket or the step frees.
  double passing_gradients() const;
  double average_bytes(const nn::NumericPrecision& precision, int64_t elements) const;

  const TrainOptions& options_;
  const data::Dataset& dataset_;
  std::shared_ptr<Task> task_;
  torch::nn::Module& module_;
  const bool is_made_whole_;  // whole before a strategy may shard it
  const nn::Model* model_;    // the module, if it has blocks; otherwise null
  std::vector<Spared> spared_;
  // Keyed by precision, recompute, as far as passes depend on it batch, and mesh.
  std::map<std::tuple<std::string, std::string, int64_t, std::string>, PassMemory> passes_;
  // The latest result of stages_of(), and its strategy, precision, recompute, ranks and batch.
  std::pair<std::tuple<std::string, std::string, std::string, int, int64_t>,
            std::vector<StageMemory>>
      stages_;
  mutable std::map<std::string, std::string> cuts_;  // results of predicted_cut() by plan
};

// Predicts every possible choice of {32, bf16-mixed, bf16-true} x {none, selective, sqrt, full} x
// {ddp, zero1, zero2, zero3} x `ranks`, extended by the configured values. The result is ordered by
// ranks, precision, recomputation and strategy. Throws Error(usage) if the configured choice cannot
// be predicted for any of `ranks`.
std::vector<MemoryPrediction> predict_choices(MemoryPredictor& predictor,
                                              const std::vector<int>& ranks);

// Returns the prediction expected to be fastest among those with `like`'s number of ranks whose
// processes need at most `bytes` bytes beyond their libraries. Prefers `like`'s precision, then the
// least recomputation, then the least sharding. Null if none fits. `predictions` must be in the
// order of predict_choices().
const MemoryPrediction* fastest_within(const std::vector<MemoryPrediction>& predictions,
                                       double bytes, const MemoryChoice& like);

// Returns the options of a choice, without its batch: "--trainer.precision=32
// --trainer.recompute=full ...".
std::string options_of(const MemoryChoice& choice);

}  // namespace troika::train
