// Training a pipeline without flushes: the order of a stage's passes, and the weights that each
// micro-batch uses.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace troika::layout {

// A pipeline drains where a step, a validation, a checkpoint or the end of a run needs all stages
// at the same step; then it fills again. Between two drains, asynchronous stages step by themselves
// as soon as the gradients of a step's micro-batches are complete.
enum class StageWeights {
  // All micro-batches of a step use the weights after the step before it: the pipeline drains
  // before each step.
  synchronous,
  // The forward pass uses the stage's newest weights, and the backward pass of the same micro-batch
  // the same: weight stashing (Narayanan et al., SOSP 2019, section 3.3).
  stashed,
  // The forward pass uses the stage's newest weights, and the backward pass those that are the
  // newest by then, which weight stashing prevents. For comparisons with it.
  unstashed,
  // Each micro-batch uses the weights of one step on all stages, the newest that the first stage
  // has when the micro-batch enters the pipeline: vertical sync (the same section).
  vertical_sync,
  // The micro-batches of a step use the weights before the latest step, those of the first step
  // after a drain the newest ones: PipeDream-2BW (Narayanan et al. 2021, arXiv 2006.09503, section
  // 3.1). No stage keeps more than two versions.
  double_buffered
};

// The names of plans' schedules without flushes, one for each kind of weights but `synchronous`.
std::vector<std::string> asynchronous_schedule_names();
std::string_view asynchronous_schedule_name(StageWeights weights);
// Returns the weights of the schedule of this name; `synchronous` for all other names.
StageWeights weights_of_schedule(std::string_view name);
// The schedule of schedule_table() in whose order asynchronous stages run their passes.
inline constexpr const char* kAsynchronousOrder = "1f1b";

// How many forward passes a stage of a pipeline without flushes runs before its first backward
// pass. The two differ only for stages with different numbers of replicas.
enum class WarmUp {
  // The rule of PipeDream's runtime (github.com/msr-fiddle/pipedream): on each replica, the other
  // ranks of its stage and of later ones, divided by the replicas of its stage and rounded down.
  runtime,
  // As many as the micro-batches that the paper admits allow (Narayanan et al., SOSP 2019, section
  // 3.2): NOAM for each replica of the first stage, which is the number of ranks divided by these
  // replicas, rounded up. One of them is on each rank of the stages before. The last stage has no
  // warm-up.
  noam
};
std::vector<std::string> warm_up_names();
// `name` must be one of warm_up_names().
WarmUp warm_up_of(std::string_view name);

// A pipeline without flushes.
struct AsynchronousPipeline {
  StageWeights weights = StageWeights::stashed;
  int64_t micro_batches = 1;  // of a step
  int stages = 1;             // one on each rank of the pipeline axis
  // Micro-batches that a stage has in flight for each stage that follows, beside the one that it
  // computes. 1: the warm-up of PipeDream's runtime, the number of stages that follow. 2: messages
  // that take up to half as long as a stage's two passes delay no pass.
  int64_t in_flight = 1;
  WarmUp warm_up_by = WarmUp::runtime;
  // The replicas of each stage, which take the micro-batches in turns: micro-batch b is for replica
  // b mod r of a stage with r replicas (1F1B-RR: Narayanan et al., SOSP 2019, section 3.2). Empty:
  // micro-batches are counted on one replica of each stage.
  std::vector<int> replicas = {};
  // With stashed weights and given replicas, a stage steps after one micro-batch of each of its
  // replicas, with a learning rate in proportion to their number, as PipeDream's runtime does.
  // Otherwise all stages step after `micro_batches`.
  bool steps_by_replicas = false;

  int replicas_of(int stage) const {
    return replicas.empty() ? 1 : replicas[static_cast<size_t>(stage)];
  }
  // Returns the forward passes of all replicas of a stage before its first backward pass, beside
  // those of the replicas' first micro-batches: `in_flight` times those of `warm_up_by`. It
  // decreases from each stage to the next. Each replica of the first stage has NOAM micro-batches
  // in flight with either rule.
  int64_t warm_up(int stage) const;
  // Returns the least micro_batches that is supported.
  int64_t least_micro_batches() const;
  // Returns the number of micro-batches, a multiple of those of a step, that stages may have begun
  // beyond a step: a drain comes at most so many after it is asked for.
  int64_t most_ahead() const;
};

// The passes of one asynchronous stage between two drains: `warm_up` forward passes, then forward
// and backward passes in turn, then the other backward passes; each replica runs its own ones of
// these. Micro-batches, and versions of the weights, count from 0 at the last drain; version v is
// that after v steps of the stage.
struct AsynchronousStage {
  StageWeights weights = StageWeights::stashed;
  int64_t micro_batches = 1;  // of a step of this stage
  // Forward passes before the first backward pass, beside that of the same micro-batch: of this
  // stage, and of the first one.
  int64_t warm_up = 0;
  int64_t first_warm_up = 0;
  int replicas = 1;  // that share the micro-batches
  // The learning rate of the stage divided by that of the run.
  double learning_rate_factor = 1;

  // Returns the number of forward passes that a replica is ahead by.
  int64_t own_warm_up() const { return warm_up / replicas; }
  // Returns the number of micro-batches of a replica among the first `count`.
  int64_t own_before(int64_t count, int replica) const {
    return (count - replica + replicas - 1) / replicas;
  }
  // Returns the version that the forward pass of a micro-batch uses and, unless weights are
  // unstashed, its backward pass. It never decreases from one micro-batch to the next.
  int64_t version(int64_t micro_batch) const;
  // Whether the forward pass that follows a step's last backward pass uses older weights than those
  // of the step, so that it may run before the step, while the step's gradients are averaged.
  bool steps_after_forward() const { return weights == StageWeights::double_buffered; }
  // Returns an upper bound of the versions that the stage keeps at once, the newest included.
  int64_t most_versions() const;
};

// Returns the order of one stage, 0 <= stage < stages. A single stage always uses its newest
// weights.
AsynchronousStage asynchronous_stage(const AsynchronousPipeline& pipeline, int stage);

}  // namespace troika::layout
