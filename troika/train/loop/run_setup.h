// The given parts of one call of Trainer::fit().
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "troika/comm/world/mesh_groups.h"
#include "troika/data/dataset.h"
#include "troika/layout/plan.h"
#include "troika/nn/state.h"
#include "troika/parallel/servers/replica_place.h"
#include "troika/train/options/options.h"
#include "troika/train/run/callback.h"
#include "troika/train/task/task.h"

namespace troika::parallel {
class SwarmMember;
}

namespace troika::train {

class QuorumRun;

// Returns the number of elements in the parameters that require gradients.
int64_t trainable_count(const torch::nn::Module& module);

// Made once, before the run begins. All referenced objects must outlive the run.
struct RunSetup {
  const TrainOptions& options;
  layout::Plan plan;
  comm::MeshGroups groups;  // of the plan's mesh
  std::filesystem::path folder;
  Task& task;
  const data::Dataset& training;
  const data::Dataset& validation;
  Callbacks callbacks;
  // This rank's place among replicas that train by themselves (strategies downpour and
  // sandblaster), each in a run of its own, for which `groups` has the ranks of this replica.
  // Others may be lost after the engine was made.
  std::optional<parallel::ReplicaPlace> replicas = {};
  // This replica's place among those that may be lost, each of which is in a run of its own. Null
  // with other strategies.
  QuorumRun* quorum = nullptr;
  // This process's place in a swarm, for strategy swarm; null with others.
  parallel::SwarmMember* swarm = nullptr;
  // Elements in the parameters of the whole model, and in the trainable ones among them.
  int64_t parameters = nn::parameter_count(task.module());
  int64_t trainable = trainable_count(task.module());

  const comm::Group& world() const { return groups.world(); }
  // The processes of the run, for descriptions.
  const comm::Group& processes() const { return replicas ? replicas->all : world(); }
  bool is_main() const { return world().rank() == 0; }
  // Whether other processes have begun the run, from whose state this one continues.
  bool joins_others() const;
  // Whether this run writes checkpoints: of the replicas of a quorum, one does.
  bool writes_checkpoints() const;
  std::filesystem::path checkpoints() const;
};

}  // namespace troika::train
