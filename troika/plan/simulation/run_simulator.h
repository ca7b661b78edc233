// Steps of a training run on a cluster, simulated event by event.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "troika/plan/simulation/shared_links.h"
#include "troika/plan/simulation/simulated_work.h"

namespace troika::plan {

// The activity of a rank; means over the steps.
struct RankUse {
  double compute_seconds = 0;  // passes and optimizer
  double exposed_seconds = 0;  // waits for collectives
  double idle_seconds = 0;     // the rest of the step: waits for messages and for other ranks
  double sent_bytes = 0;       // messages between stages
  double received_bytes = 0;
  double peak_bytes = 0;  // the maximum over all steps
};

struct SimulatedSpan {
  int rank = 0;
  int step = 0;
  const char* track = "";
  std::string name;
  double begin = 0;
  std::optional<double> end = {};  // none for an instant
  int bucket = -1;
  double bytes = -1;
};

// How old the parameters are from which ranks compute. Parameter servers: by how many steps of all
// ranks those of a step lack gradients. Other methods: for each push, the number of pushes of
// others between the rank's fetch of the parameters and this push.
struct Staleness {
  double mean = 0;
  int64_t most = 0;
  int64_t count = 0;  // of steps or pushes
};

// Passes over the samples in portions (Sandblaster).
struct BatchCounts {
  int64_t passes = 0;
  int64_t portions = 0;  // whose results counted
  int64_t dropped = 0;   // results that did not count, also of portions that were given up
  int64_t backups = 0;   // portions that were given to an idle replica once more
};

struct RunSimulation {
  // From the end of the step before, on the last rank to end it, to this step's end.
  std::vector<double> step_seconds;
  double seconds = 0;  // of all steps
  // From the begin of the first pass to the end of the last one, in the first step; where ranks do
  // not wait for each other, in the first step of each rank, of passes that have ended.
  double makespan = 0;
  // (span - busy) / span of the rank with the longest span from its first pass to its last, as
  // Simulation::bubble_rate; the mean over the steps. Nothing for exchanges with servers that have
  // no barrier.
  std::optional<double> bubble_rate = {};
  std::vector<RankUse> ranks;
  // By link of ClusterLinks; of all steps.
  std::vector<LinkTraffic> links;
  std::vector<SimulatedSpan> spans;         // if asked for
  std::optional<Staleness> staleness = {};  // of asynchronous exchanges with servers
  std::optional<BatchCounts> batch = {};    // of Sandblaster
};

// Carries out the plan's schedule on every rank:
// - A rank computes one pass at a time, in its order. A pass begins when its messages have arrived.
// - A message leaves where the schedule sends it; flow and computing overlap. It takes its flow
//   over the shared links of its path (ClusterLinks), then the latency.
// - Gradients are averaged along the data axis by collectives (collective_phases()), which the
//   ranks of a stage carry out one after the other beside their passes; a collective begins when
//   all have come to it. With one stage, buckets begin during the last backward pass, as their
//   gradients are ready; else after it. The step waits for its stage's collectives.
// - ZeRO averages by reduce-scatter (and an all-reduce between groups), steps over its share, and
//   gathers the parameters after the step (stages 1 and 2) or in each pass (stage 3).
// - On a tensor axis, a pass computes, then sums over the ranks of its tensor group. So nothing
//   hides the sums, as in a run, which waits for each of them where its layer ends. With
//   tensor_overlap, each two forward passes take turns at their sums (PairedForward).
// - With local_steps, parameters are averaged after the step, in the steps that the plan says.
//
// A plan without flushes fills its pipeline, makes all steps, and drains; a step of the result ends
// when the last stage to make it has.
//
// Exchanges with servers that have no barrier have ranks with the whole model:
// - summation with cross_barrier: a bucket is pushed when its gradients are ready, partition by
//   partition, with priorities and credit. The optimizer steps a bucket's parameters when its mean
//   is there, before the first block of the next step that uses them.
// - summation with asynchronous: a rank steps, pushes its parameters, and takes the servers' values
//   without a wait for other ranks.
// - servers: a rank pushes its gradients, and pulls the parameters when the servers have applied
//   the steps that the consistency asks for.
// - downpour: replicas compute, fetch and push beside each other; servers apply pushes one after
//   the other.
// - sandblaster: an iteration has rounds of vector operations at the servers, and passes in
//   portions, which the replicas compute one after the other (layout::Portions).
// Where N replicas do not wait for each other, each N steps of replicas that end count as one step
// of the result, whichever replicas made them; the simulation ends with the last of these.
//
// Without links (latency 0, bandwidth unknown), replicas, and disturbances, passes begin and end
// when layout::replay() says. Deterministic. Throws the errors of SimulatedRun::verify() and
// RankPrograms.
RunSimulation simulate_run(const SimulatedRun& run);

}  // namespace troika::plan
