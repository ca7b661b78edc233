// PipeDream's partitioner (Harlap et al. 2018, arXiv 1806.03377, section 3.2; Narayanan et al.,
// SOSP 2019): stages and their replicas for an asynchronous pipeline, by the published cost models.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

#include "troika/layout/profile.h"

namespace troika::plan {

// One level of a network. A machine of this level may be a group of machines of the level below.
struct MachineLevel {
  int machines = 1;
  double bandwidth = 0;  // bytes per second between them
};

// How the time of a stage follows from its computation and the exchange of its gradients.
enum class PublishedModel {
  sum,  // one after the other, as in the released optimizer
  max   // both at the same time, as in the papers
};

struct PublishedOptions {
  PublishedModel model = PublishedModel::sum;
  std::vector<MachineLevel> levels = {};  // innermost first; at least one
  bool straight = false;                  // no stage is replicated
  bool fewer_machines = false;            // machines may stay idle
  std::optional<double> memory_bytes =
      {};  // of each machine, for the stashed copies of weights and activations
  // Divides the times of messages between stages. If empty, these messages take no time.
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
  // A lower bound on the time of any plan. Equal to seconds_per_minibatch if the search has
  // considered all cuts.
  double lower_bound = 0;
  bool is_optimal = false;
  size_t cuts = 0;  // considered by the search
  std::vector<PublishedStage> stages = {};
  // If `feasible` is false: the least memory_bytes with which some plan is feasible, if there is
  // one.
  std::optional<double> least_memory_bytes = {};
};

// Returns the fastest plan. Among plans whose times are equal to 1e-12, returns one with the fewest
// stages of the outermost level. The result depends only on the arguments. Uses a dynamic program
// over all cuts of the profile's graph, which is exact; with more than 2000 cuts, over some of
// them.
//
// With several levels, a stage of one level is planned like a whole model on all machines of the
// level below. PublishedModel::sum gives the times of the released optimizer,
// github.com/msr-fiddle/pipedream, with one exception: there, a stage within a stage may begin with
// blocks that do not come before the others. Throws Error(usage) for levels without machines or
// bandwidth, and for numbers that are not positive.
PublishedPlan plan_published(const layout::Profile& profile, const PublishedOptions& options);

}  // namespace troika::plan
