// Executes a plan on one rank, one optimizer step at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "troika/checkpoint/checkpoint.h"
#include "troika/comm/world/mesh_groups.h"
#include "troika/data/batch.h"
#include "troika/layout/plan.h"
#include "troika/parallel/parameter_store.h"
#include "troika/parallel/servers/replica_place.h"
#include "troika/train/engine/evaluator.h"

namespace troika {
class Trace;
}
namespace troika::parallel {
class SwarmMember;
}

namespace troika::checkpoint {
class CheckpointReader;
}

namespace troika::data {
class Dataset;
}

namespace troika::observe {
class StepTimes;
}

namespace troika::quorum {
class Member;
}

namespace troika::train {

class Optimization;
class Task;
struct TrainOptions;

// Supplies an engine with this rank's micro-batches of one optimizer step.
class MicroBatches {
 public:
  // `step` counts the optimizer steps of the run from 0. `count` is the number of micro-batches of
  // this step on this rank. Earlier calls of Engine::step() have trained on the first `begin` of
  // them; `begin` < `count`.
  MicroBatches(int64_t step, int64_t count, int64_t begin = 0)
      : step_(step), count_(count), begin_(begin) {}
  virtual ~MicroBatches() = default;

  int64_t step() const { return step_; }
  int64_t count() const { return count_; }
  int64_t begin() const { return begin_; }

  // The number of micro-batches from the first one of this step to the next drain, the same on all
  // ranks. The drain may move forward between two steps, but not to fewer micro-batches than
  // Engine::most_ahead() after the first of the two.
  virtual int64_t until_drain() const { return count() - begin(); }

  // Returns the next micro-batch, as the data set gives it; valid until done() is called for it. An
  // engine may take several before it calls done(), also those of later steps up to the drain, for
  // which it calls done() of the later objects. Null makes Engine::step() return between two
  // micro-batches; never null if the engine does not leave steps (Engine::leaves_steps()).
  virtual const data::Batch* next() = 0;
  // Called in the order of next(), once for each micro-batch, after its backward pass; for the last
  // micro-batch of a step, after the optimizer step. `loss` is the micro-batch's mean loss: one
  // element on the compute device, without a graph. The same on all ranks of a pipeline.
  virtual void done(const at::Tensor& loss) = 0;
  // For an engine of a swarm, which takes micro-batches until the step has come, whatever count()
  // is: the step has ended, and the next done() is that of its last micro-batch.
  virtual void end_with_next() {}
  // For such an engine: the step has ended, and has no micro-batch of this peer.
  virtual void end_without() {}

 private:
  const int64_t step_, count_, begin_;
};

struct StepResult {
  // Whether the optimizer has stepped. If false, MicroBatches::next() returned null.
  bool is_complete = false;
  // The peak of tensor bytes, by base/memory.h, in this call; 0 if bytes are not counted.
  int64_t peak_tensor_bytes = 0;
  // Why further steps would change nothing; empty: they may.
  std::string why_last = {};
};

// Trains a task's module under a plan, with its exchange, optimizer and learning rates. Not
// thread-safe. step(), synchronize_replicas(), make_whole(), fetch_states(), judge() and
// try_to_make_whole() are collective: all ranks call them alike, and they block.
class Engine : public Evaluator {
 public:
  // Runs an optimizer step, or the rest of a step that an earlier call left unfinished. Errors of
  // LibTorch pass through rethrow_plainly() (step_error.h); errors thrown by `batches` do not.
  virtual StepResult step(MicroBatches& batches) = 0;
  // Whether step() may return between two micro-batches, so that a checkpoint or a stop need not
  // wait for the end of the step.
  virtual bool leaves_steps() const { return true; }
  // The most micro-batches beyond a step's last one that step() takes, on any rank. Unless it is 0,
  // ranks may be at different steps until a drain (layout/schedules/stage_weights.h), before which
  // no other function may be called.
  virtual int64_t most_ahead() const { return 0; }
  // Makes all replicas bitwise equal, and completes the parts of the module that this rank trains.
  virtual void synchronize_replicas() = 0;
  // Like synchronize_replicas(), and also fills in the parts of the module that other ranks train.
  // Called at the end of a run.
  virtual void make_whole() { synchronize_replicas(); }
  // Completes the states that state() returns.
  virtual void fetch_states() { store().fetch_states(); }
  // Runs a forward pass of a batch, as the data set gives it, that updates the running statistics
  // of batch norms. Called in training mode and without gradients; in a pipeline, by all of its
  // ranks, with the same batch.
  virtual void update_batch_norms(const data::Batch& batch) = 0;
  // Gives the validation loss, the same on all ranks, to the learning-rate schedule. Called once
  // after each validation. Throws Error(usage) if there is no loss and the schedule needs it.
  virtual void judge(std::optional<double> validation_loss) = 0;

  // Returns the state of this rank from which training continues: its shards, and whole tensors.
  // With `in_step`, includes the gradients of the current step's micro-batches so far. Tensors may
  // share memory with this object. Does not communicate.
  virtual checkpoint::RankState state(bool in_step) const = 0;
  // Loads what state() returned, from any number of ranks and any strategy with the same states.
  // Reads only this rank's parts of sharded states. `gradients` are those of an unfinished step.
  // Does not communicate itself; the returned function does. All ranks must call the returned
  // function next, which blocks and updates the module. Throws Error(usage) if states that depend
  // on the memory order of weights were saved with a different order, and if shapes do not match.
  [[nodiscard]] virtual std::function<void()> load(const checkpoint::CheckpointReader& saved,
                                                   const checkpoint::NamedTensors& gradients) = 0;
  // Restores all parameters of the module if ranks shard them, for a run that ends before its first
  // micro-batch. Logs a warning if this fails because another rank is gone.
  virtual void try_to_make_whole() = 0;

  virtual Optimization& optimization() = 0;
  virtual parallel::ParameterStore& store() = 0;
};

// All referenced objects must outlive the engine.
struct EngineSetup {
  const TrainOptions& options;
  const layout::Plan& plan;
  Task& task;
  // The training samples, for an engine that loads them itself; null: it does not.
  const data::Dataset* training = nullptr;
  const comm::MeshGroups& groups;  // of the plan's mesh
  // This rank's place among replicas that train by themselves, for methods downpour and
  // sandblaster; null: each rank of the data axis is one.
  const parallel::ReplicaPlace* replicas = nullptr;
  quorum::Member* quorum = nullptr;        // of method fault_tolerant; has joined
  parallel::SwarmMember* swarm = nullptr;  // of method collaborative
  int64_t steps = 0;          // optimizer steps of the whole run; 0 if a time limit ends it
  int64_t global_batch = 0;   // samples of a micro-batch over all ranks
  observe::StepTimes& times;  // collects the times of the steps' phases
  Trace* trace = nullptr;     // may be null
  // Called before each optimizer step, when gradients and the learning rate are ready.
  std::function<void()> before_step = [] {};
  // Asks whether the run was asked to stop, for an engine that waits. For a group of one rank.
  std::function<bool()> stops = [] { return false; };
};

// Makes the engine of a plan. Called by all ranks; blocks. Throws Error(usage) for combinations of
// plan, task and device that are not supported.
std::unique_ptr<Engine> make_engine(const EngineSetup& setup);

}  // namespace troika::train
