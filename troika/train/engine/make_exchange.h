// Builds the gradient exchange of a plan.
#pragma once

#include <memory>

#include "troika/comm/world/mesh_groups.h"
#include "troika/layout/plan.h"
#include "troika/parallel/context/context_parallel.h"
#include "troika/parallel/exchange.h"
#include "troika/parallel/servers/replica_place.h"
#include "troika/train/options/options.h"
#include "troika/train/task/task.h"

namespace troika {
class Trace;
}

namespace troika::parallel {
class SwarmMember;
}

namespace troika::quorum {
class Member;
}

namespace troika::train {

// Makes the plan's exchange for a part of a pipeline's stage. `optimizer` is the name of the
// optimizer. The plan's method must not be local_steps. Called by all ranks of the group, the
// replicas of the stage; blocks.
std::unique_ptr<parallel::Exchange> make_stage_exchange(const layout::Plan& plan,
                                                        const std::string& optimizer,
                                                        torch::nn::Module& part,
                                                        const comm::Group& group, Trace* trace);

// Cuts the samples of the task's model over the plan's context axis; null: it has one rank. The
// model must outlive the object.
std::unique_ptr<parallel::ContextParallel> cut_samples(const layout::Plan& plan, Task& task,
                                                       const comm::Group& axis);

// Makes the plan's exchange for the task's module, whose optimizer is the recipe's: along the data
// and context axes and, if a tensor axis cuts the model, also along that one. Records gradient
// transfers in `trace` unless it is null. `values`: see parallel::ShardedOptions, for ZeRO stage 3,
// and parallel::TensorOptions, only. Throws Error(usage) if the numbers of the task's replicas and
// the plan's threads differ, and for a precision, an optimizer or options that the exchange does
// not support. Called by all ranks; blocks.
std::unique_ptr<parallel::Exchange> make_exchange(const layout::Plan& plan,
                                                  const TrainOptions& options,
                                                  const OptimizerRecipe& recipe, Task& task,
                                                  const comm::MeshGroups& groups, Trace* trace,
                                                  compat::DeferredInit* values = nullptr);

// Makes the exchange of method fault_tolerant, or of DiLoCo, over the members of a quorum. The
// member must outlive it.
std::unique_ptr<parallel::Exchange> make_quorum_exchange(const layout::Plan& plan,
                                                         const TrainOptions& options,
                                                         torch::nn::Module& module,
                                                         quorum::Member& member, Trace* trace);

// Makes the exchange of method collaborative over the peers of a swarm. The member must outlive it.
std::unique_ptr<parallel::Exchange> make_swarm_exchange(const layout::Plan& plan,
                                                        torch::nn::Module& module,
                                                        parallel::SwarmMember& member,
                                                        Trace* trace);

// Makes the exchange of a plan of method downpour or sandblaster for `module`: the task's, or the
// part of it that this place of a replica has. Throws Error(usage) like make_exchange(). Called by
// all ranks; blocks.
std::unique_ptr<parallel::Exchange> make_replica_exchange(const layout::Plan& plan,
                                                          const TrainOptions& options,
                                                          const OptimizerRecipe& recipe, Task& task,
                                                          torch::nn::Module& module,
                                                          const parallel::ReplicaPlace& place);

}  // namespace troika::train
