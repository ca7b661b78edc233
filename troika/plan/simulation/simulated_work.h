// A simulated run: the work of its stages, and its disturbances.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "troika/layout/all_reduce.h"
#include "troika/layout/cluster.h"
#include "troika/layout/context_shard.h"
#include "troika/layout/plan.h"
#include "troika/layout/plan_places.h"
#include "troika/layout/schedules/replay.h"
#include "troika/plan/paired_forward.h"

namespace troika::plan {

// Gradients that are averaged by one collective.
struct GradientBucket {
  double bytes = 0;
  // The time from when the bucket's last gradient is ready to the end of the stage's backward pass.
  double seconds_before_end = 0;
  // The time of the stage's forward pass before its first block whose gradients are in the bucket.
  double forward_seconds_before = 0;
};

// Sums over the ranks of a tensor axis in a pass, one after the other.
struct TensorSums {
  int count = 0;
  double bytes = 0;   // of each, of a whole tensor
  double beside = 0;  // seconds of computing beside each, if the pass has one part

  bool operator==(const TensorSums&) const = default;
};

// A stage on one rank. Times are in seconds. Times of passes and sizes of activations are for one
// micro-batch.
struct StageWork {
  // `message` is not used: messages take the time of their links.
  layout::StageTimes passes = {};
  double optimizer_seconds = 0;  // a step over all parameters of the stage
  double output_bytes = 0;       // sent to the next stage; the gradient has the same size
  std::vector<GradientBucket> buckets = {};  // in the order in which they are averaged
  double parameter_bytes = 0;
  double gather_seconds = 0;  // that an all-gather of the parameters takes besides its messages
  // Memory on a rank.
  // Parameters, states of the optimizer, batches, posted receive buffers, and gradients that stay
  // from step to step.
  double resident_bytes = 0;
  double gradient_bytes = 0;  // that each step makes anew
  // From the begin of a forward pass to the end of its backward pass, beside the received inputs.
  double activation_bytes = 0;
  double input_bytes = 0;  // received from the stage before, and kept as long
  // If a backward pass has two parts: what replaces activation_bytes between them.
  double weight_part_bytes = 0;
  // Whether the received inputs, and the received gradient of the output, stay until the second
  // one.
  bool weight_part_takes_input = true, weight_part_takes_gradient = false;
  double workspace_bytes = 0;        // while a pass runs
  double first_workspace_bytes = 0;  // in the backward pass that makes these gradients, with them
  double input_workspace_bytes = 0, weight_workspace_bytes = 0;  // the same in either part
  // For a pass that gathers the stage's parameters: the share of its computation that follows the
  // arrival of the last parameter.
  double share_after_gather = 0;
  // The sums in each pass on a tensor axis, with an entry for each kind. A backward pass in two
  // parts has them in its first part, beside nothing.
  std::vector<TensorSums> forward_sums = {};
  std::vector<TensorSums> backward_sums = {};
  bool sums_tokens = false;  // a sum is a reduce-scatter and an all-gather
  // If two forward passes take turns: the sums of each, and shares of `passes.forward` as seconds.
  ForwardTurns forward_turns = {};
  // All-gathers over the tensor axis in each backward pass, beside its sums.
  std::vector<TensorSums> backward_gathers = {};
  // The messages of each pass on a context axis, with an entry for each kind of round. Backward
  // passes in two parts have them in their first part.
  std::vector<layout::ContextRounds> forward_rounds = {};
  std::vector<layout::ContextRounds> backward_rounds = {};
  // Whether passes that the schedule splits are split in a run, too (SplitBackward). If not, the
  // input part is the whole backward pass, and there is no weight part.
  bool splits_backward = true;
};

// Random and fixed changes to the times of passes. All draws depend only on `seed`, rank, step and
// pass.
struct Disturbances {
  // The standard deviation of a pass's time, relative to the time. Times are log-normal.
  double jitter = 0;
  // The share of devices that are slow, drawn at random, and the factor on their times.
  double straggler_share = 0;
  double straggler_factor = 1;
  // Ranks that are slow, with the factor on their times.
  std::vector<std::pair<int, double>> slow_ranks = {};
  uint64_t seed = 0;
};

struct SimulatedRun {
  layout::Plan plan = {};
  layout::PlanPlaces places = {};      // of the plan, for errors
  std::vector<StageWork> stages = {};  // one for each stage of the plan's schedule, or one for all
  // Rank r is device r.
  layout::Cluster cluster = {};
  // The `flops` of the device on which the stages' times were measured; 0: those of the cluster's
  // fastest device. Used by layout::device_slowness().
  double reference_flops = 0;
  double overlap = 1;  // PassesInStep::overlap
  layout::Algorithm all_reduce = layout::Algorithm::automatic;
  double reduce_per_byte = 0;  // seconds per byte that a rank reduces in a collective
  Disturbances disturbances = {};
  int steps = 1;  // without flushes: those between two drains
  // Method sandblaster: the micro-batches of a pass over the samples (0: one for each portion), and
  // the passes of an iteration, one for each point of its line search.
  double batch_micro_batches = 0;
  int evaluations = 1;
  bool records_trace = false;

  // Returns the work of a stage of the plan's schedule.
  const StageWork& stage(int number) const {
    return stages[stages.size() == 1 ? 0 : static_cast<size_t>(number)];
  }
  // Returns the actions of a step, or without flushes of all steps, with whole backward passes of
  // the stages that do not split them (layout::schedule_of_run()).
  layout::Schedule schedule() const;
  // Whether a step, counted from 0, averages gradients, and whether it averages parameters.
  bool averages_gradients(int step) const;
  bool averages_parameters(int step) const;
  // Whether a step begins on a rank before the step before it has ended on others, or on this rank.
  bool overlaps_steps() const;
  // Returns the micro-batches of all replicas in a step.
  double micro_batches_of_step() const;
  // Method sandblaster: the portions of a pass, and the micro-batches of each.
  int64_t portions() const;
  double portion_micro_batches() const;
  // For method summation: the first device of each host that has a summation server and no rank.
  // Hosts that come after those with ranks have them, one each.
  std::vector<int> spare_devices() const;
  // For method summation: the ranks that exchange gradients with the servers, and whether they are
  // the first ones of their hosts, whose ranks sum first.
  std::vector<int> summation_workers() const;
  bool sums_on_hosts() const;
  // Returns the device of each server. Method summation: spare_devices(), summation_workers().
  // Methods with parameter servers: the first devices of hosts without ranks, which have
  // servers.count in turn, or one each if this is 0; without such hosts, those of ranks.
  std::vector<int> server_devices() const;
  // Throws Error(usage) for a plan with more ranks than the cluster has devices, a number of stages
  // that differs from the schedule's, threads in a process, and a slow rank that is not in the
  // plan. Throws the errors of layout::Plan::verify() and schedule_of().
  void verify() const;
};

}  // namespace troika::plan
