// Troika's own cost model: the time of an optimizer step of a plan, and the memory of its stages.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "troika/layout/cluster.h"
#include "troika/layout/profile.h"

namespace troika::plan {

struct StepProblem {
  // The profiles of one model with the same blocks: one for each precision and size of
  // micro-batches that the search may take.
  std::vector<layout::Profile> profiles = {};
  layout::Cluster cluster = {};  // unknown links are those of the profile, or take no time
  double global_batch = 0;       // samples of an optimizer step
  std::optional<double> memory_bytes = {};  // of each device, instead of the cluster's
  bool straight = false;                    // no stage is replicated
  double compression_ratio = 1;             // of activations between stages
};

// Orders of passes and places of ranks.
enum class StepFamily {
  one_stage,      // replicas of the whole model
  pipeline,       // 1f1b; stages of any numbers of replicas, which are neighbours
  pipeline_rows,  // 1f1b; equal numbers of replicas, stages are neighbours: data=R pipeline=S
  zero_bubble     // zb-h1; equal numbers of replicas, which are neighbours
};
std::string_view name(StepFamily family);

// All of a plan but its stages.
struct StepSettings {
  size_t profile = 0;      // an index into StepProblem::profiles
  bool recompute = false;  // each block keeps its inputs, and repeats its forward pass
  int zero_stage = 0;      // as layout::GradientExchange::zero_stage
  StepFamily family = StepFamily::one_stage;
  int devices = 1;  // the first ones of the cluster
};

struct StepStage {
  size_t end = 0;  // one past the last block, in the order of StepModel::order()
  int replicas = 1;

  bool operator==(const StepStage&) const = default;
};

struct StepPlan {
  StepSettings settings = {};
  std::vector<StepStage> stages = {};
  double seconds = 0;                     // of an optimizer step
  std::vector<double> memory_bytes = {};  // of a device of each stage
  // The most that a device lacks; at most 0 if all stages fit.
  double lacking_bytes = 0;
};

// The time is sum(latency) + max(steady) + max(exposed). `latency` is the time of one micro-batch
// in a stage and on the links between stages, there and back: it fills and drains the pipeline.
// `steady` is the time that the slowest stage or link takes for the other micro-batches. `exposed`
// is the part of the average of gradients that the last backward pass does not hide.
//
// A stage is as slow as its slowest device (Cluster's flops), and as the latest of its replicas,
// sqrt(2 ln replicas) spreads of its time after their mean. A micro-batch i is at replica i modulo
// replicas; links are shared by the replicas of a host. Averages are rings, or rings within hosts
// and between hosts. A stage keeps activations for as many micro-batches as its replicas need until
// the first one comes back: U / R of U devices from its own on, and of all devices for zb-h1.
class StepModel {
 public:
  // Keeps a copy of `problem`. Throws Error(usage) for profiles of different models or precisions
  // twice, a batch that no profile's micro-batch divides, and numbers that are not positive.
  explicit StepModel(StepProblem problem);

  const StepProblem& problem() const { return problem_; }
  // The blocks, each after those that it reads from.
  const std::vector<size_t>& order() const { return order_; }
  size_t blocks() const { return order_.size(); }
  // Micro-batches of an optimizer step; 0 if they do not divide the global batch.
  int micro_batches(size_t profile) const { return micro_batches_[profile]; }
  // Whether stages with equally many replicas train the whole batch: each replica has as many
  // micro-batches. Stages of different numbers of replicas share any number.
  bool shares_evenly(size_t profile, int replicas) const {
    return micro_batches(profile) % replicas == 0;
  }

  struct Cost {
    double latency = 0, steady = 0, exposed = 0;
    double memory_bytes = 0;
    double lacking_bytes = 0;  // negative or 0 if it fits
  };
  // Returns the cost of the blocks from `begin` to `end` on `replicas` devices, after `used`
  // devices of other stages.
  Cost stage(const StepSettings& settings, size_t begin, size_t end, int used, int replicas) const;
  // Returns the cost of the messages between two stages. The first one has `replicas` devices after
  // `used`.
  Cost boundary(const StepSettings& settings, size_t end, int used, int replicas,
                int next_replicas) const;

  // Returns the plan with its time and memory.
  StepPlan price(const StepSettings& settings, const std::vector<StepStage>& stages) const;
  // No plan takes less.
  double lower_bound() const;

 private:
  // Sums over the blocks before each place.
  struct Sums {
    std::vector<double> forward, input, weight, deviation, saved, inputs, parameters;
    std::vector<double> crossing;  // bytes of outputs that are read after each place
  };
  struct Place {
    double slowness = 1, capacity = 0;
    int hosts = 1, fullest = 1;  // of the ranks of a stage
    double share = 1;            // of the network's bandwidth
    layout::Link inside = {}, between = {};
  };

  Sums sums_of(const layout::Profile& profile) const;
  int rank_of(const StepSettings& settings, int used, int replicas, int replica) const;
  const Place& place_of(const StepSettings& settings, int used, int replicas) const;
  Place find_place(const StepSettings& settings, int used, int replicas) const;
  layout::Link link(size_t profile, layout::Level level) const;
  double slowness(size_t profile, int rank) const;
  double average_seconds(const Place& place, int replicas, double bytes) const;

  StepProblem problem_;
  std::vector<size_t> order_;
  std::vector<int> micro_batches_;
  std::vector<Sums> sums_;
  // By profile, family, devices, used devices and replicas. Filled by const functions, so that a
  // model is of one thread.
  mutable std::map<std::array<int, 5>, Place> places_;
};

}  // namespace troika::plan
