// Makes the plan of a run from its options: the only code that reads trainer.strategy.
#pragma once

#include <string>
#include <vector>

#include "troika/comm/group.h"
#include "troika/layout/cluster.h"
#include "troika/layout/plan.h"
#include "troika/layout/plan_places.h"
#include "troika/train/options/options.h"

namespace troika::train {

// All values of trainer.strategy: Troika's names, then PyTorch Lightning's names for some of them.
const std::vector<std::string>& strategy_names();
// The strategies whose memory is compared, in decreasing order of memory and increasing order of
// communication.
const std::vector<std::string>& strategies_by_memory();

// Makes the plan from trainer.plan if it is set, otherwise from trainer.strategy and the options of
// its section, for one process on each device of the cluster. A cluster without devices is unknown;
// its plan is for one rank. Plan::strategy gets Troika's name if the option has Lightning's. Throws
// Error(usage) for an unknown strategy (naming the nearest), for horovod with both kinds of
// accumulation, for a pipeline whose mesh does not fit the cluster or that accumulates by two
// options, for options of pipelines with another strategy, for hybrid_shard on hosts with different
// numbers of ranks, for ddp2 with several ranks on a host, and where Plan::parse() does.
layout::Plan resolve_plan(const TrainOptions& options, const layout::Cluster& cluster);

// The strategy of summation servers.
inline constexpr const char* kSummationStrategy = "byteps";
// The strategy of peers that come and go (docs/swarm.md).
inline constexpr const char* kSwarmStrategy = "swarm";

// The hosts of a group's ranks; all else in the cluster is unknown.
layout::Cluster cluster_of(const comm::Group& group);

// Whether trainer.devices counts threads of one process instead of processes (Plan::threads). Does
// not depend on the cluster.
bool trains_in_threads(const TrainOptions& options);

// Replaces the options that the plan in trainer.plan decides by the plan's values. Without a plan,
// returns the options unchanged. Throws Error(usage) for a plan that cannot be read or has values
// that the options reject.
TrainOptions with_plan(TrainOptions options);
// Returns options that lead to another strategy's plan, `strategy` by name: without the plan, mesh,
// stages and ZeRO of the options.
TrainOptions with_strategy(TrainOptions options, const std::string& strategy);
// Whether a plan decides the option `key`; beside trainer.plan, the option's own value is then
// ignored.
bool is_planned(const std::string& key);

// Throws Error(usage) for a plan that contradicts itself, is for another number of ranks than
// `world`, or needs features that no engine supports: axes other than `pipeline`, `data` and
// `tensor`, a tensor axis beside what it does not combine with (require_runnable_axes()), and a
// pipeline with local steps, compression or threads. The error names the place of the value.
void require_runnable(const layout::Plan& plan, int world, const layout::PlanPlaces& places = {});

// Returns the places in trainer.plan, for errors; none if it is not set.
layout::PlanPlaces places_of_plan(const TrainOptions& options);

}  // namespace troika::train
