// The problem that the search is given, and the plans that it chooses from.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "troika/layout/cluster.h"
#include "troika/layout/profile.h"
#include "troika/layout/schedules/stage_weights.h"

namespace troika::plan {

// A schedule, and the arrangement of stages and replicas on consecutive ranks.
enum class StepFamily {
  one_stage,      // replicas of the whole model
  pipeline,       // 1f1b; any numbers of replicas, on consecutive ranks
  pipeline_rows,  // 1f1b; equal numbers of replicas; stages on consecutive ranks: data=R pipeline=S
  zero_bubble,    // zb-h1; equal numbers of replicas, on consecutive ranks
  gpipe,          // equal numbers of replicas, on consecutive ranks
  no_flushes      // StepProblem::weights; any numbers of replicas, on consecutive ranks
};
std::string_view name(StepFamily family);

// The ranks that compute each block together, neighbours on one host: a context axis, by rings,
// around a tensor axis.
struct BlockAxes {
  int tensor = 1;
  bool sequence = false;  // sequence parallelism
  int context = 1;

  int ranks() const { return tensor * context; }
  bool operator==(const BlockAxes&) const = default;
};

// A plan without its stages.
struct StepSettings {
  size_t profile = 0;      // an index into StepProblem::profiles
  bool recompute = false;  // each block keeps only its inputs and is recomputed
  int zero_stage = 0;      // as layout::GradientExchange::zero_stage
  StepFamily family = StepFamily::one_stage;
  int devices = 1;  // the plan uses the first devices of the cluster
  // Whether these are offloaded to files or to the host's memory. False for pipelines.
  bool offloads_optimizer = false;  // the states of the optimizer
  bool offloads_activations = false;
  BlockAxes axes = {};
  bool tensor_overlap = false;  // as layout::ModelStages::tensor_overlap
  // Gradients are averaged by summation servers: one on each spare host, and one beside each
  // replica, or on each host with replicas if there are several: these sum first. Such a plan has
  // one stage, and no ZeRO, tensor or context axis, or offload.
  bool sums = false;

  // The devices in groups that compute blocks together: what a stage's replicas count.
  int groups() const { return devices / axes.ranks(); }
  // The forward passes that take turns.
  int passes_together() const { return tensor_overlap ? 2 : 1; }
  // Whether a run has the stages of a pipeline, which one stage has that combines ZeRO with a
  // tensor or context axis.
  bool has_stages() const {
    return family != StepFamily::one_stage || (axes.ranks() > 1 && zero_stage > 0);
  }
  // The ranks that have the same parameters of a stage, and average gradients.
  int copies(int replicas) const { return replicas * axes.context; }
  bool operator==(const StepSettings&) const = default;
};

// The seconds that offload adds to plans of one stage.
struct OffloadSeconds {
  double optimizer = 0;  // to a step of the optimizer, for all parameters
  double pass = 0;       // to the passes of a micro-batch without recomputation
};

// The bytes of a device under a plan.
struct DeviceBytes {
  double step = 0;  // in a training step
  double most = 0;  // at any time, also in validations
};

struct StepProblem {
  // Profiles of one model with the same blocks: one for each combination of precision and
  // micro-batch size that the search may choose.
  std::vector<layout::Profile> profiles = {};
  layout::Cluster cluster = {};  // unknown links are those of the profile, or take no time
  double global_batch = 0;       // samples of an optimizer step
  std::optional<double> memory_bytes = {};  // of each device, beside the cluster's
  bool straight = false;                    // no stage is replicated
  double compression_ratio = 1;             // of activations between stages
  // Whether the search considers plans with a tensor or a context axis, for profiles with blocks
  // that these cut. It does not with `straight`.
  bool cuts_layers = false;

  // Other than synchronous: the search also considers pipelines without flushes, with these
  // weights, whose gradients are those of older weights.
  layout::StageWeights weights = layout::StageWeights::synchronous;

  // Restrictions of the search to plans that can be run.
  bool uses_all_devices = false;
  // Whether plans with these settings may be chosen; `is_uneven`: with different numbers of
  // replicas of stages. Empty: all.
  std::function<bool(const StepSettings&, bool is_uneven)> allows = {};
  // The bytes of a device under a plan of one stage, if they are known better than from the
  // profile; nothing: they are not. Empty: they are not for any plan.
  std::function<std::optional<DeviceBytes>(const StepSettings&)> one_stage_bytes = {};
  // One for each profile; empty: plans with offload are not considered.
  std::vector<OffloadSeconds> offload = {};
};

struct StepStage {
  size_t end = 0;    // one past the last block, in the order of StepModel::order()
  int replicas = 1;  // each on a device, or on a group that computes blocks together

  bool operator==(const StepStage&) const = default;
};

struct StepPlan {
  StepSettings settings = {};
  std::vector<StepStage> stages = {};
  double seconds = 0;                     // of an optimizer step
  std::vector<double> memory_bytes = {};  // of a device of each stage, in a training step
  // The maximum over devices of the bytes needed beyond their memory; <= 0 if all stages fit.
  double lacking_bytes = 0;

  // Whether each device has the whole model.
  bool is_whole() const {
    return settings.family == StepFamily::one_stage && settings.axes.ranks() == 1;
  }
};

}  // namespace troika::plan
