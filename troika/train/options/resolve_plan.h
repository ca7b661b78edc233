// The plan that a run's options mean: the only code that reads trainer.strategy.
#pragma once

#include <string>
#include <vector>

#include "troika/comm/group.h"
#include "troika/layout/cluster.h"
#include "troika/layout/plan.h"
#include "troika/train/options/options.h"

namespace troika::train {

// Every name that trainer.strategy takes: ours, then those of PyTorch Lightning for some of them.
const std::vector<std::string>& strategy_names();
// The strategies whose memory is compared, from that which needs most memory and communicates least
// to that which needs least.
const std::vector<std::string>& strategies_by_memory();

// Makes the plan of trainer.plan where that is set, else of trainer.strategy and the options of its
// section, for one process on each device of the cluster. A cluster without devices is not known:
// the plan is then for one rank. Plan::strategy is the name of ours for a name of Lightning's.
// Throws Error(usage) for an unknown strategy (naming the nearest), for horovod with two kinds of
// accumulation, for hybrid_shard on hosts of different numbers of ranks, for ddp2 with several
// ranks on a host, and what Plan::parse() does.
layout::Plan resolve_plan(const TrainOptions& options, const layout::Cluster& cluster);

// The hosts of a group's ranks, of which nothing else is known.
layout::Cluster cluster_of(const comm::Group& group);

// Whether trainer.devices are threads of one process, not processes: Plan::threads, which does not
// depend on the cluster.
bool trains_in_threads(const TrainOptions& options);

// The options of a run by trainer.plan: those for which the plan has a value take it. Without a
// plan, the same options. Throws Error(usage) for a plan that cannot be read, or with values that
// the options refuse.
TrainOptions with_plan(TrainOptions options);
// Whether a plan decides what this key of the options does: then its value in the options does not
// count beside trainer.plan.
bool is_planned(const std::string& key);

// Throws Error(usage) for a plan that contradicts itself, is for another number of ranks than
// `world`, or needs what no engine can run: stages, and axes beside `data`.
void require_runnable(const layout::Plan& plan, int world);

}  // namespace troika::train
