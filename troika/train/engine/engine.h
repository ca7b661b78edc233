// Carries out a plan on a rank, one optimizer step after another.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "troika/checkpoint/checkpoint.h"
#include "troika/comm/mesh_groups.h"
#include "troika/data/batch.h"
#include "troika/layout/plan.h"
#include "troika/train/engine/evaluator.h"

namespace troika {
class Trace;
}
namespace troika::parallel {
class ParameterStore;
}

namespace troika::checkpoint {
class CheckpointReader;
}

namespace troika::observe {
class StepTimes;
}

namespace troika::train {

class Optimization;
class Task;
struct TrainOptions;

// This rank's micro-batches of one optimizer step, as an engine asks for them.
class MicroBatches {
 public:
  // `step` is the number of the optimizer step in the run, from 0. `count` is the number of its
  // micro-batches on this rank; earlier calls of Engine::step() have trained on the first `begin`,
  // which are fewer.
  MicroBatches(int64_t step, int64_t count, int64_t begin = 0)
      : step_(step), count_(count), begin_(begin) {}
  virtual ~MicroBatches() = default;

  int64_t step() const { return step_; }
  int64_t count() const { return count_; }
  int64_t begin() const { return begin_; }

  // The next one, as the data set gives it, valid until it is done. Null: Engine::step() returns,
  // between two micro-batches.
  virtual const data::Batch* next() = 0;
  // The oldest micro-batch that was not done has had its backward pass; the last one of a step also
  // the optimizer's step. `loss` is its mean: one element on the device that computes, without a
  // graph.
  virtual void done(const at::Tensor& loss) = 0;

 private:
  const int64_t step_, count_, begin_;
};

struct StepResult {
  // The optimizer has stepped; else MicroBatches::next() gave null.
  bool is_complete = false;
  // The most bytes that base/memory.h counted in this call; 0 where nothing is counted.
  int64_t peak_tensor_bytes = 0;
};

// The module of a task with its exchange, optimizer and learning rates, under a plan. Not for use
// by several threads. step(), synchronize_replicas(), judge() and try_to_make_whole() are called by
// all ranks alike, and block.
class Engine : public Evaluator {
 public:
  // Carries out an optimizer step, or the rest of one that was left. Errors of LibTorch go through
  // rethrow_plainly() (step_error.h); those that `batches` throws do not.
  virtual StepResult step(MicroBatches& batches) = 0;
  // Makes the replicas the same bits on all ranks, and the module whole.
  virtual void synchronize_replicas() = 0;
  // Once after each validation, on all ranks the same loss. Throws Error(usage) where there is none
  // and the learning rates follow it.
  virtual void judge(std::optional<double> validation_loss) = 0;

  // The state of this rank that the next micro-batch depends on: its shards, and whole tensors.
  // `in_step`: with the gradients of the step's micro-batches so far. Tensors may share memory with
  // this object. Does not communicate.
  virtual checkpoint::RankState state(bool in_step) const = 0;
  // Loads what state() gave, on any number of ranks of any strategy with the same states: of what
  // ranks share out this rank's parts alone are read. `gradients` are those of an unfinished step.
  // Does not communicate: what it returns is to be called then, on all ranks; it blocks, and the
  // module takes what was read. Throws Error(usage) where states that follow the order of weights
  // in memory are of another one, and for what does not fit.
  [[nodiscard]] virtual std::function<void()> load(const checkpoint::CheckpointReader& saved,
                                                   const checkpoint::NamedTensors& gradients) = 0;
  // For what ends before the first micro-batch: where ranks share parameters out, the module gets
  // all of them again. Where that fails, as another rank is gone, a warning says so.
  virtual void try_to_make_whole() = 0;

  virtual Optimization& optimization() = 0;
  virtual parallel::ParameterStore& store() = 0;
};

// All that is referred to must outlive the engine.
struct EngineSetup {
  const TrainOptions& options;
  const layout::Plan& plan;
  Task& task;
  const comm::MeshGroups& groups;  // those of the plan's mesh
  int64_t steps = 0;               // of the whole run; 0: it ends by the clock
  int64_t global_batch = 0;        // samples of a micro-batch over all ranks
  observe::StepTimes& times;       // of the steps
  Trace* trace = nullptr;          // may be null
  // Called once gradients and the learning rate of a step are there.
  std::function<void()> before_step = [] {};
};

// Called by all ranks; blocks. Throws Error(usage) for what the plan, the task and the device
// cannot do together.
std::unique_ptr<Engine> make_engine(const EngineSetup& setup);

}  // namespace troika::train
