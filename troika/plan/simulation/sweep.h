// Simulations over a range of devices or micro-batches.
#pragma once

#include <functional>
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

  // Reads `devices=1..1024`: 1, 2, 4 and so on by doubling, and the end; `devices=1..64/1`: every
  // number with this step; or a list, `micro_batches=1,2,6`. Throws Error(usage) for other text,
  // numbers below 1 or above a million, and more than 10000 values.
  static SweepRange parse(std::string_view text);
};

// `run` has everything but the work of stages, which the plan of each point gets from `profile`.
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
  double speed_up = 0;    // over one device; 0 if the plan does not run on one
  double idle_share = 0;  // of the time of all devices: they wait, or are not used
};

// Runs the plan on the first n devices for each n: on pipelines of the plan's length, or of n
// stages if n is less, and as many of them as fit. Each replica has the plan's micro-batches. A
// cluster of fewer devices goes on with hosts like its last one. Numbers of stages outside of the
// schedule's domain are left out. A cut of the plan's own is dropped where it needs fewer stages,
// and slow ranks that a point does not have are left out. Throws Error(usage) for stages of
// different numbers of replicas and a plan with a schedule of its own where it needs fewer stages,
// and the errors of simulate_run() and stage_work().
std::vector<DevicesPoint> sweep_devices(const SweptRun& swept, const std::vector<int>& devices);

struct MicroBatchesPoint {
  int micro_batches = 0;
  double samples = 0;  // of a micro-batch
  double step_seconds = 0;
  double bubble_rate = 0;
  double peak_bytes = 0;  // of the rank with most
  bool fits = true;       // in the memory of each device, where the cluster has it
};

// Splits the samples of the plan's step into other numbers of micro-batches. Numbers outside of the
// schedule's domain are left out, and those with micro-batches of less than one sample.
std::vector<MicroBatchesPoint> sweep_micro_batches(const SweptRun& swept,
                                                   const std::vector<int>& micro_batches);

// Returns the point that fits with the least time; null if none fits.
const MicroBatchesPoint* best_of(const std::vector<MicroBatchesPoint>& points);

// Returns the first `devices` devices, or those and more hosts like the last one.
layout::Cluster resized(const layout::Cluster& cluster, int devices);

}  // namespace troika::plan
