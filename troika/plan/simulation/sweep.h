// Simulations over a range of devices or micro-batches.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "troika/layout/profile.h"
#include "troika/plan/simulation/run_simulator.h"
#include "troika/plan/simulation/stage_work.h"

namespace troika::plan {

struct SweepRange {
  enum class What { devices, micro_batches };
  What what = What::devices;
  std::vector<int> values = {};  // ascending

  // Parses `devices=1..1024` (1, 2, 4 and so on by doubling, and the end), `devices=1..64/1` (with
  // this step), or a list, `micro_batches=1,2,6`. Without values, they are 1..1024. Throws
  // Error(usage) for other text, numbers below 1 or above a million, and more than 10000 values.
  static SweepRange parse(std::string_view text);
};

// The simulated run without the work of its stages, which is computed from `profile` for the plan
// of each point.
struct SweptRun {
  SimulatedRun run = {};
  layout::Profile profile = {};
  StageWorkOptions work = {};
};

struct DevicesPoint {
  int devices = 0;
  int used = 0;
  std::string mesh;
  double step_seconds = 0;  // mean
  double samples_per_second = 0;
  std::optional<double> speed_up =
      {};                 // relative to one device; none if the plan does not run there
  double idle_share = 0;  // share of the devices' time spent waiting or unused
  bool fits = true;       // in each device's memory, if known
};

// Simulates the plan on the first n devices for each n. A point has pipelines of the plan's length
// (of fewer stages if n is less), of its tensor and context axes, and as many of them as fit;
// numbers below the product of these axes are skipped. Each replica has the plan's number of
// micro-batches. A cluster with fewer devices is extended by hosts like its last one. Skips numbers
// of stages outside the schedule's domain, and numbers of replicas that Plan::verify() refuses,
// such as those that a group of ZeRO does not divide. Where a point needs fewer stages, the plan's
// cut is not used. Slow ranks that a point does not have are ignored. Throws Error(usage) for
// stages with different numbers of replicas, for axes other than data, pipeline, tensor and
// context, for servers on hosts without ranks, for a plan with a custom schedule if a point needs
// fewer stages, and if all points are skipped. Throws the errors of simulate_run() and
// stage_work().
std::vector<DevicesPoint> sweep_devices(const SweptRun& swept, const std::vector<int>& devices);

struct MicroBatchesPoint {
  int micro_batches = 0;
  double samples = 0;  // of a micro-batch
  double step_seconds = 0;
  std::optional<double> bubble_rate = {};  // RunSimulation::bubble_rate
  double peak_bytes = 0;                   // of the rank with the most memory
  bool fits = true;                        // in each device's memory, if known
};

// Simulates the plan with the samples of its step split into other numbers of micro-batches. Skips
// numbers outside the schedule's domain, and numbers that give micro-batches of less than one
// sample.
std::vector<MicroBatchesPoint> sweep_micro_batches(const SweptRun& swept,
                                                   const std::vector<int>& micro_batches);

// Returns the rank that has the most bytes beyond the memory of its device; nothing if all ranks
// fit, as far as the memory is known.
std::optional<int> rank_beyond_memory(const RunSimulation& simulation,
                                      const layout::Cluster& cluster);

// Returns the fastest point that fits; null if none fits.
const MicroBatchesPoint* best_of(const std::vector<MicroBatchesPoint>& points);

// Returns a cluster of the first `devices` devices. If the cluster has fewer, adds hosts like the
// last one.
layout::Cluster resized(const layout::Cluster& cluster, int devices);

}  // namespace troika::plan
