// Troika's own cost model: the time of an optimizer step of a plan, and the memory of its stages.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "troika/layout/cluster.h"
#include "troika/layout/profile.h"
#include "troika/plan/memory/kept_at_pass.h"
#include "troika/plan/memory/memory_parts.h"
#include "troika/plan/memory/stage_bytes.h"
#include "troika/plan/search/partial_cost.h"
#include "troika/plan/search/step_plan.h"
#include "troika/plan/simulation/cluster_links.h"
#include "troika/plan/split_backward.h"

namespace troika::plan {

// The seconds of the parts of a micro-batch's pass in a stage; the means of those that differ.
// `input` is the whole backward pass if the stage does not split it.
struct PassSeconds {
  double forward = 0, input = 0, weight = 0;
  double longer = 0;  // by which the first micro-batch takes longer
  // The first and the last forward pass of a step; where two take turns, both together.
  double first_forward = 0, last_forward = 0;

  double all() const { return forward + input + weight; }
};

// The time of a pipeline that waits for round trips (1f1b, zb-h1) is that of a replay of its passes
// and messages (replay_passes()): each stage then averages gradients and steps, for `exposed`. All
// other times, and the estimate by which the search orders these pipelines, are
// sum(latency) + max(steady) + max(exposed). `latency` is the time of one micro-batch
// in a stage and on the links between stages, there and back: it fills and drains the pipeline.
// `steady` is the time that the slowest stage, port or round trip (see PartialCost) takes for the
// other micro-batches, and by which the first one takes longer (PassesInStep). `exposed` is the
// part of the average of gradients that the last backward pass does not hide, and the optimizer's
// step with the gather of parameters that follows it in ZeRO stages 1 and 2.
//
// gpipe does not wait for round trips; its `steady` is the sum of the maxima of forward and of
// backward passes. With forward passes that take turns, it is replayed, too. In zb-h1, weight parts
// are put off: `latency` has those of the first stage alone, and `steady` has those that come
// before the last backward pass. A step takes at least as long as the first forward passes on the
// way to a stage and all passes of this stage.
//
// A stage is as slow as its slowest device (layout::device_slowness()), and as the latest of its
// replicas, if the times of blocks are independent normal numbers. A micro-batch i is at replica
// i modulo replicas; links are shared by the replicas of a host, which send at the same time.
// Averages are rings, or rings within hosts and between hosts, at the rate of the slowest host's
// link; or the pushes and means of summation servers, over the links of the simulation. A stage
// keeps activations for as many micro-batches as its replicas need until the first one comes back:
// U / R of U devices from its own on; in gpipe, all. In zb-h1 it also keeps what the weight parts
// need that it puts off (BlockInStage::weight_saved_share). A stage that does not split backward
// passes (SplitBackward) has no weight parts. Without flushes, a pipeline does not fill and drain
// in each step, so `latency` is 0, and a stage keeps older versions of its parameters. With offload
// of activations, the tensors of two blocks are in memory at once.
//
// On a tensor axis, a group of devices takes the place of a device. It computes the blocks of
// layout::tensor_shard(), with the sums over the axis as rings in each pass, and waits for its
// latest device in each block. The devices at the same place of their groups average gradients and
// exchange messages, all at the same time. With a context axis, a group has several tensor axes,
// each with a part of the tokens (layout::context_shard()), and all of its devices on that axis
// average, too. Its passes take the messages of rings, and whole backward passes the sums over the
// tensor axis, as far as computing does not hide them (layout::exposed_seconds()).
class StepModel {
 public:
  // Throws Error(usage) for profiles of different models, for two profiles of the same precision
  // and micro-batch, for a global batch that is not a multiple of any profile's micro-batch, and
  // for numbers that are not positive. There may be at most 10^6 micro-batches.
  explicit StepModel(StepProblem problem);

  const StepProblem& problem() const { return problem_; }
  // The blocks in topological order: each block comes after its inputs.
  const std::vector<size_t>& order() const { return order_; }
  size_t blocks() const { return order_.size(); }
  // Micro-batches of an optimizer step; 0 if they do not divide the global batch.
  int micro_batches(size_t profile) const { return micro_batches_[profile]; }
  // Whether this number of replicas divides the number of micro-batches, as required if all stages
  // have the same number of replicas, and leaves each replica two if forward passes take turns.
  // Stages with different numbers of replicas can share any number of micro-batches.
  bool shares_evenly(const StepSettings& settings, int replicas) const {
    const int count = micro_batches(settings.profile);
    return count % replicas == 0 && count / replicas >= settings.passes_together();
  }

  // The groups that the search considers, that of one rank first: tensor_ranks() and
  // context_ranks() of all profiles on which the groups fill each host, and the same with sequence
  // parallelism where it divides more.
  const std::vector<BlockAxes>& block_axes() const { return axes_; }

  // Returns the blocks as one of the ranks that compute them together has them.
  const layout::Profile& profile_of_rank(const StepSettings& settings) const {
    return shard_of(settings).profile;
  }

  // Returns the layout::SummationExchange::links of plans with summation servers: measured where
  // the hosts of these ranks and spare hosts have links of different bandwidths, otherwise equal.
  std::string links_of_sums(const StepSettings& settings, int replicas) const;

  // Whether the search considers only stages with the same number of replicas.
  bool has_even_stages(const StepSettings& settings) const;

  // The seconds that offload adds to the passes of a micro-batch, and to an optimizer step before
  // ZeRO divides it.
  OffloadSeconds offload_seconds(const StepSettings& settings) const;

  // Returns the cost of a stage with blocks [begin, end) on `replicas` devices. Earlier stages have
  // the first `used` devices. Here and below, devices are counted by groups that compute blocks
  // together.
  StageCost stage(const StepSettings& settings, size_t begin, size_t end, int used,
                  int replicas) const;
  // Returns the cost of the messages between two stages. The first stage ends at block `end` and
  // has `replicas` devices, after the first `used` devices.
  WireCost boundary(const StepSettings& settings, size_t end, int used, int replicas,
                    int next_replicas) const;
  // Returns the WireCost of the first stage, which no messages come before.
  WireCost before_first(const StepSettings& settings) const;
  // Whether the backward passes of a stage are in two parts where the schedule splits them.
  bool splits_backward(const StepSettings& settings, size_t begin, size_t end) const {
    return !settings.recompute && shard_of(settings).backward.splits(begin, end);
  }
  // Returns the memory of a device of a stage in a training step. The activations are those of the
  // micro-batches before the latest one, whose pass is the workspace.
  MemoryParts stage_memory(const StepSettings& settings, size_t begin, size_t end, int used,
                           int replicas) const;
  // Returns StageCost::in_flight.
  int in_flight(const StepSettings& settings, int used, int replicas) const;

  // Whether price() replays pipelines with these settings.
  static bool is_replayed(const StepSettings& settings);
  // Returns the mean pass of a micro-batch in a stage of a pipeline.
  PassSeconds mean_pass(const StepSettings& settings, size_t begin, size_t end, int used,
                        int replicas) const;
  // Returns the seconds of the sums over the tensor axis that another forward pass does not hide,
  // and of the messages on the context axis that attention does not hide, in the passes of a
  // micro-batch in a stage.
  struct AxisSums {
    double forward = 0;
    double backward = 0;  // with those of recomputation
    // As PassSeconds says.
    double first_forward = 0, last_forward = 0;
  };
  AxisSums axis_sums(const StepSettings& settings, size_t begin, size_t end, int used,
                     int replicas) const;
  // Returns StageCost::exposed of a stage that begins with block `begin`.
  double exposed(const StepSettings& settings, size_t begin, int used,
                 const StepStage& stage) const;
  // A lower bound on the seconds of a message between two stages.
  struct LeastMessage {
    double latency = 0, flow = 0;

    double seconds() const { return latency + flow; }
  };
  // The arguments are those of boundary().
  LeastMessage least_message(const StepSettings& settings, size_t end, int used, int replicas,
                             int next_replicas) const;

  // Returns the plan with its memory, and its estimated time.
  StepPlan estimate(const StepSettings& settings, const std::vector<StepStage>& stages) const;
  // Returns the plan with its time and memory.
  StepPlan price(const StepSettings& settings, const std::vector<StepStage>& stages) const;
  // Returns a lower bound on the seconds of any plan.
  double lower_bound() const;

  // Lower bounds on the cost of the blocks from `begin` on, in any stages on `devices` devices in
  // total.
  struct Least {
    double latency = 0, steady = 0, backward = 0, whole = 0;
  };
  Least least(const StepSettings& settings, size_t begin, int devices) const;

 private:
  // The seconds of messages between the ranks that compute blocks together, less what computing
  // hides, added up over the blocks before each position in order().
  struct Exposed {
    std::vector<double> forward, backward;  // of rings; empty without a context axis
    // Of the sums, and the gathers of sequence parallelism, of whole backward passes; empty if
    // nothing is hidden.
    std::vector<double> sums;
  };
  // Sums over the blocks before each position in order().
  struct Sums {
    std::vector<double> forward, input, weight, deviation, variance, saved, inputs, parameters;
    std::vector<double> fixed, borrowed;  // BlockInStage::fixed_bytes, borrowed_bytes
    std::vector<double> crossing;  // bytes of earlier outputs that are read after each position
    BytesOfStages keeping, recomputing;  // without and with recomputation
    // Of blocks: the most and the least bytes of parameters, and bounds on the seconds of backward
    // passes with and without recomputation. The least ones are negative.
    RangeMaximum most_parameters, least_parameters, longest_backward, shortest_backward;
    RangeMaximum most_alone;  // bytes of each block, with what the block before it saves
    // The number and the bytes of the sums over the tensor axis in each pass.
    std::vector<double> forward_sums, forward_summed, backward_sums, backward_summed;
    std::vector<double> gathers, gathered;  // with sequence parallelism, in backward passes
    std::vector<double> slowness;           // by device
    double least_slowness = 1;
    layout::Link fastest_axis = {};  // at least as fast as any tensor axis
    Exposed exposed = {};            // at most as long as that of any group
  };
  // A profile as a rank of a group that computes blocks together has it.
  struct Shard {
    layout::Profile profile;
    Sums sums;
    SplitBackward backward;
  };
  struct Place {
    double slowness = 1, capacity = 0;
    int hosts = 1, fullest = 1;  // of the ranks of a stage
    double share = 1;            // of the network's bandwidth
    // How late the slowest replica is, and the slowest rank that computes the same blocks, in
    // standard deviations.
    double lateness = 0, axis_lateness = 0;
    layout::Link inside = {}, between = {};
    layout::Link axis = {};  // of the slowest tensor axis
    Exposed exposed = {};    // of the slowest tensor and context axis
  };
  // The port of a host, and the share of the messages between two stages that cross it.
  struct HostPort {
    int rank = 0;  // one of the host
    double share = 0;
  };
  // The messages between two stages.
  struct Crossing {
    std::array<bool, 2> has_level = {};  // inside hosts, by layout::Level
    std::vector<HostPort> ports = {};    // the busiest one of each bandwidth
  };

  void find_axes();
  Sums sums_of(const layout::Profile& profile) const;
  const Shard& shard_of(const StepSettings& settings) const;
  // The seconds of the sums over a tensor axis with this link, and of rings, in the passes of
  // blocks [begin, end). `splits`: whether backward passes are in two parts.
  double axis_seconds(const StepSettings& settings, const layout::Link& link,
                      const Exposed& exposed, bool splits, size_t begin, size_t end) const;
  // Returns the part of axis_seconds() in the forward passes, without recomputation.
  double axis_forward_seconds(const StepSettings& settings, const layout::Link& link,
                              const Exposed& exposed, size_t begin, size_t end) const;
  AxisSums axis_sums(const StepSettings& settings, size_t begin, size_t end, const Place& place,
                     int replicas) const;
  // Lets the forward passes of micro-batches take turns (paired_seconds()), two at a time; an odd
  // last one runs alone.
  void overlap_sums(AxisSums& sums, const StepSettings& settings, size_t begin, size_t end,
                    const Place& place, int replicas) const;
  // Returns the micro-batches of a step that each of so many replicas has at most.
  int own_micro_batches(const StepSettings& settings, int replicas) const {
    return (micro_batches_[settings.profile] + replicas - 1) / replicas;
  }
  const layout::Devices& device(int rank) const;
  // Returns the rank of the first device of a replica.
  int rank_of(const StepSettings& settings, int used, int replicas, int replica) const;
  // Ranks of a host, each `stride` after the one before.
  struct AxisOfRanks {
    int ranks = 1, stride = 1;
  };
  // Returns the slowest link of several axes. The first one begins with rank `first`, and the ranks
  // of each are `apart` after those of the one before.
  layout::Link slowest_axis(size_t profile, int first, const AxisOfRanks& axis, int axes,
                            int apart) const;
  // Return the slowest link among the tensor axes and among the context axes of a group that begins
  // with this rank.
  layout::Link tensor_link(const StepSettings& settings, int first) const;
  layout::Link context_link(const StepSettings& settings, int first) const;
  // Returns what is exposed of the messages of a group that computes blocks together, over these
  // links, on devices of this slowness. `profile` is that of a rank.
  Exposed exposed_of(const layout::Profile& profile, const BlockAxes& axes,
                     const layout::Link& tensor, const layout::Link& context,
                     double slowness) const;
  std::vector<double> exposed_sums(const layout::Profile& profile, const BlockAxes& axes,
                                   const layout::Link& link, double slowness) const;
  // Set Sums::fastest_axis and Sums::exposed.
  void find_fastest(Sums& sums, const layout::Profile& own, const StepSettings& settings) const;
  // Returns numbers that differ between settings whose stages are on different ranks.
  static std::array<int, 3> arrangement(const StepSettings& settings);
  const Place& place_of(const StepSettings& settings, int used, int replicas) const;
  Place find_place(const StepSettings& settings, int used, int replicas) const;
  // Returns expected_maximum().
  double lateness_of(int ranks) const;
  const Crossing& crossing_of(const StepSettings& settings, int used, int replicas,
                              int next_replicas) const;
  Crossing find_crossing(const StepSettings& settings, int used, int replicas,
                         int next_replicas) const;
  // Returns the link of a level inside hosts.
  layout::Link link(size_t profile, layout::Level level) const;
  // Returns the factor on the profile's times in the passes of blocks [begin, end): of the slowest
  // device, and of waits for the latest rank.
  double scale_of_passes(const StepSettings& settings, size_t begin, size_t end,
                         const Place& place) const;
  // Returns the bytes of a message over the network for each byte of a replica's, if one replica is
  // replayed in place of all: as long as the slowest of their messages takes.
  double replayed_share(const StepSettings& settings, const Crossing& crossing, int fewer, int from,
                        int to) const;
  // `sums` are axis_sums().
  PassSeconds pass_seconds(const StepSettings& settings, size_t begin, size_t end,
                           const Place& place, int replicas, const AxisSums& sums) const;
  double replayed_seconds(const StepSettings& settings, const std::vector<StepStage>& stages) const;
  void add_schedule(StageCost& cost, const StepSettings& settings, const PassSeconds& passes,
                    int used, int replicas) const;
  double exposed_seconds(const StepSettings& settings, size_t begin, size_t end, const Place& place,
                         int replicas) const;
  // Returns what the reduction of a stage's gradients, which takes so many seconds alone, adds to a
  // step. A bucket of gradients is reduced once the backward passes of its blocks have ended,
  // beside those of the blocks before; each second of both adds 1 - overlap to these.
  double exposed_reduction(const StepSettings& settings, size_t begin, size_t end,
                           const Place& place, int copies, double seconds) const;
  // The seconds that the gather of ZeRO stage 3 adds to a pass of so many seconds, and those of the
  // pass beside which it runs.
  struct Gather {
    double exposed = 0, hidden = 0;
  };
  Gather gather(const StepSettings& settings, size_t begin, size_t end, const Place& place,
                int copies, double pass) const;
  // Returns the blocks of [begin, end) among which the one is whose reduction ends last: a single
  // one if each block is a bucket and all reductions wait for the one before, or none does.
  // `per_byte` is the time of a byte that computing hides. No gather is beside the pass.
  std::pair<size_t, size_t> latest_buckets(const StepSettings& settings, size_t begin, size_t end,
                                           const Place& place, double per_byte) const;
  // Returns the part of the passes of blocks [begin, end) for which all their parameters must have
  // been gathered.
  double part_after_gather(const StepSettings& settings, size_t begin, size_t end) const;
  // The seconds of an all-reduce.
  double average_seconds(const Place& place, int copies, double bytes) const;
  // The seconds of a reduce-scatter and an all-gather, of which each takes half.
  double sharded_seconds(const Place& place, int copies, double bytes) const;
  // The same by summation servers, as the simulation computes it.
  double summation_seconds(const StepSettings& settings, int replicas, double bytes) const;
  // Returns the largest part of the gradients that a server beside a replica sums.
  double most_summed(const StepSettings& settings, int replicas) const;
  std::vector<int> spare_devices() const;
  // Returns the ranks that exchange gradients with the servers, as those of a simulation do.
  std::vector<int> summation_workers(const StepSettings& settings, int replicas) const;
  // Micro-batches whose activations a device of a stage keeps.
  struct KeptPasses {
    double whole = 0;               // until their backward passes
    double weight_part = 0;         // whose input parts are done, until their weight parts
    double gradients = 1;           // of outputs, if weight parts need them
    bool is_split = false;          // whether backward passes have these two parts
    bool runs_weight_part = false;  // while so many are kept
    // A pipeline whose forward passes take turns has all passes at which others are kept.
    const std::vector<KeptAtPass>* at_passes = nullptr;
  };
  KeptPasses kept_passes(const StepSettings& settings, size_t begin, size_t end, int used,
                         int replicas) const;
  // Returns the passes of a pipeline's stage whose forward passes take turns.
  const std::vector<KeptAtPass>& kept_at_passes(const StepSettings& settings, bool is_split,
                                                int used, int replicas) const;
  // The bytes of messages to and from other stages.
  double message_bytes(const StepSettings& settings, size_t begin, size_t end, int replicas,
                       const KeptPasses& kept) const;
  // The most versions of the parameters of a stage without flushes, beside the newest one.
  int older_versions(const StepSettings& settings, int used, int replicas) const;

  using PlaceKey = std::array<int, 6>;
  struct HashOfPlaceKey {
    size_t operator()(const PlaceKey& key) const {
      size_t hash = 0;
      for (const int number : key) hash = 0x9E3779B97F4A7C15 * (hash + static_cast<size_t>(number));
      return hash ^ hash >> 32;
    }
  };

  StepProblem problem_;
  std::vector<size_t> order_;
  std::vector<int> micro_batches_;
  std::vector<size_t> rows_;  // of the cluster's devices, by rank
  std::vector<BlockAxes> axes_;
  mutable size_t latest_axes_ = 0;   // those of the latest shard_of()
  std::vector<Shard> shards_;        // for each profile, those of all axes_
  std::vector<ClusterLinks> links_;  // by profile
  // Keys: profile, arrangement, used devices and replicas; for crossings, arrangement, used
  // devices, replicas and the next stage's replicas. Filled by const functions, so a model may be
  // used by only one thread at a time. Hashed, because large searches look up millions of them.
  mutable std::unordered_map<PlaceKey, Place, HashOfPlaceKey> places_;
  mutable std::unordered_map<int, double> lateness_;  // by the number of ranks
  mutable std::unordered_map<PlaceKey, Crossing, HashOfPlaceKey> crossings_;
  // Pipelines whose forward passes take turns have these passes, by stage. Keys: family, whether
  // backward passes have two parts, stages, and micro-batches of a replica.
  mutable std::map<std::array<int, 4>, std::vector<std::vector<KeptAtPass>>> kept_at_passes_;
};

}  // namespace troika::plan
