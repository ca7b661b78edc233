// PipeDream's partitioner (Harlap et al. 2018, arXiv 1806.03377, section 3.2; Narayanan et al.,
// SOSP 2019): stages and their replicas for an asynchronous pipeline, by the published cost models.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

#include "troika/layout/profile.h"

namespace troika::plan {

// One level of a network of machines, which may be groups of machines of the level below.
struct MachineLevel {
  int machines = 1;
  double bandwidth = 0;  // bytes per second between them
};

// How a stage's computation and the exchange of its gradients add up.
enum class PublishedModel {
  sum,  // one after the other, as in the released optimizer
  max   // at the same time, as in the papers
};

struct PublishedOptions {
  PublishedModel model = PublishedModel::sum;
  std::vector<MachineLevel> levels = {};    // innermost first; at least one
  bool straight = false;                    // no stage is replicated
  bool fewer_machines = false;              // machines may stay idle
  std::optional<double> memory_bytes = {};  // of each machine, for the copies that a stage stashes
  // Divides the times of activations between stages. Without it they take no time.
  std::optional<double> compression_ratio = {};
};

struct PublishedStage {
  int replicas = 1;
  std::vector<size_t> blocks;  // indices into the profile, ascending
};

struct PublishedPlan {
  bool feasible = false;
  double seconds_per_minibatch = 0;  // in steady state
  double data_parallel_seconds = 0;  // with one stage on all machines, whether it fits or not
  // No plan takes less. Equal to seconds_per_minibatch if the search has seen all cuts.
  double lower_bound = 0;
  bool is_optimal = false;
  size_t cuts = 0;  // that the search has seen
  std::vector<PublishedStage> stages = {};
  // The least memory_bytes with which a plan is feasible, if this one is not; nothing if none is.
  std::optional<double> least_memory_bytes = {};
};

// Returns the plan of least time. Among plans that are equal to 1e-12 it takes one of fewest stages
// of the outermost level. The result depends on nothing but the arguments. An exact dynamic
// programme over all cuts of the profile's graph if these are at most 2000; else over some of them.
//
// Several levels: a stage of one level is planned like a whole model on the level below, of which
// it takes all machines. The sum is that of the released optimizer,
// github.com/msr-fiddle/pipedream, except for this: there, a stage within a stage may begin with
// blocks that are not before the others. Throws Error(usage) for levels without machines or
// bandwidth, and numbers that are not positive.
PublishedPlan plan_published(const layout::Profile& profile, const PublishedOptions& options);

}  // namespace troika::plan
