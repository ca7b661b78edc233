// How much memory a training run will take, before it runs.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "troika/data/dataset.h"
#include "troika/layout/plan.h"
#include "troika/nn/model.h"
#include "troika/train/memory/pass_memory.h"
#include "troika/train/options/options.h"

namespace troika::train {

struct MemoryChoice {
  std::string strategy;
  std::string precision;
  std::string recompute;
  int ranks = 1;
  int64_t batch = 0;  // samples on each rank; 0: as many as the options give

  bool operator==(const MemoryChoice&) const = default;
};

// Bytes of tensors on one rank, as base/memory.h counts them, at the moment of a step at which they
// are most.
struct MemoryParts {
  double parameters = 0;   // and buffers
  double gradients = 0;    // their means
  double optimizer = 0;    // states, float32 masters with their gradients, averages of weights
  double activations = 0;  // what the forward pass leaves for the backward pass
  double buckets = 0;      // gradients and parameters on their way between ranks
  double workspace = 0;    // of the operators at work; what is recomputed
  double batches = 0;      // the one in use and those loaded ahead

  double sum() const;
};

struct MemoryPrediction {
  MemoryChoice choice = {};
  MemoryParts step = {};
  // The most between steps: where zero3 has all parameters, and where buckets are made anew.
  double between_steps = 0;
  // The most before the first step: the model as it was made, and what it is replaced by.
  double start = 0;
  // The most in a validation.
  double validation = 0;

  // Memory of the process beside its tensors and the libraries that it starts with.
  double overhead = 0;

  // The most that tensors take, without validations.
  double training_peak() const;
  // The most that tensors take, with validations.
  double peak() const;
  // peak() and the overhead; without the libraries.
  double process() const { return peak() + overhead; }
};

// Predicts for the model and the batches of one configuration, on its optimizer. Activations are
// measured, by passes on small batches; all else follows from shapes. Needs
// compat::count_tensor_memory(), and that no other thread makes tensors meanwhile. What the
// constructors take must outlive this object. Batches are of the data set's first sample.
class MemoryPredictor {
 public:
  // For the model that options.model describes, as large as the data set's samples.
  MemoryPredictor(const TrainOptions& options, const data::Dataset& dataset);
  // For the task of a program: its steps run on tensors without memory in the place of its module's
  // parameters, buffers and gradients, which it has back when this object ends. Numbers that steps
  // read from tensors are zeros.
  MemoryPredictor(const TrainOptions& options, const data::Dataset& dataset, Task& task);
  ~MemoryPredictor();
  MemoryPredictor(const MemoryPredictor&) = delete;
  MemoryPredictor& operator=(const MemoryPredictor&) = delete;

  // Predicts for the options on so many ranks.
  MemoryChoice configured(int ranks) const;
  // Why this cannot be predicted; empty: it can.
  std::string why_not(const MemoryChoice& choice) const;
  // Throws Error(usage) where it cannot. Changes the state of the random generator.
  MemoryPrediction predict(const MemoryChoice& choice);
  // Samples on each rank.
  int64_t batch_of(const MemoryChoice& choice) const;
  // What the choice means, with all ranks on one host.
  layout::Plan plan(const MemoryChoice& choice) const;

 private:
  // A tensor of a program's module as it was before.
  struct Spared {
    at::Tensor tensor;
    at::Tensor data;
    at::Tensor gradient;
  };

  layout::RecomputePlan plan_of(const MemoryChoice& choice, const nn::Precision& precision) const;
  const PassMemory& pass_of(const MemoryChoice& choice);
  double optimizer_bytes(const nn::Precision& precision, int64_t elements) const;
  // Bytes of gradients that the backward pass allocates and a bucket or the step frees.
  double passing_gradients() const;
  double average_bytes(const nn::Precision& precision, int64_t elements) const;

  const TrainOptions& options_;
  const data::Dataset& dataset_;
  std::shared_ptr<Task> task_;
  torch::nn::Module& module_;
  const bool is_made_whole_;  // before a strategy may share it out
  const nn::Model* model_;    // the module, if it has blocks
  std::vector<Spared> spared_;
  // By precision, recompute, and the batch as far as passes depend on it.
  std::map<std::tuple<std::string, std::string, int64_t>, PassMemory> passes_;
};

// Every choice of {32, bf16-mixed, bf16-true} x {none, selective, sqrt, full} x {ddp, zero1,
// zero2, zero3} x `ranks`, and of what is configured, that can be had; by ranks, precision,
// recomputation and strategy. Throws Error(usage) where what is configured is predicted for none of
// `ranks`.
std::vector<MemoryPrediction> predict_choices(MemoryPredictor& predictor,
                                              const std::vector<int>& ranks);

// The prediction for a rank that is expected to be fastest among those of `like`'s number of ranks
// whose processes take no more than so many bytes beside their libraries: one of its precision if
// there is any, then with the least recomputation, then with the least shared out. Null where none
// does. `predictions` are in the order of predict_choices().
const MemoryPrediction* fastest_within(const std::vector<MemoryPrediction>& predictions,
                                       double bytes, const MemoryChoice& like);

// The options that make a choice, without its batch: "--trainer.precision=32
// --trainer.recompute=full ...".
std::string options_of(const MemoryChoice& choice);

}  // namespace troika::train
