#include "troika/train/run/replica_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/checkpoint/resume.h"
#include "troika/cluster/discovery/port.h"
#include "troika/comm/local/local.h"
#include "troika/comm/world/world.h"
#include "troika/net/socket.h"
#include "troika/train/options/resolve_plan.h"
#include "troika/train/run/run_group.h"

namespace troika::train {

bool trains_replicas(const TrainOptions& options, const comm::Group& group) {
  try {
    const auto plan = resolve_plan(options, cluster_of(group));
    return plan.trains_replicas();
  } catch (const Error&) {
    return false;
  }
}

namespace {

// A world of its own for the ranks of a replica: the loss of a process ends the world that it is
// in. Ranks in threads end together.
comm::Group own_world(const TrainOptions& options, const comm::Group& all, int number, int at,
                      int each) {
  if (all.backend() == "local") return *all.split(number, at);
  const auto& nodes = all.nodes();
  const auto first = static_cast<size_t>(number * each);
  const bool is_one_machine = std::ranges::max(nodes) == 0;
  const auto addresses =
      all.all_gather_text(at > 0 ? ""
                                 : fmt::format("{} {}", cluster::free_port(),
                                               is_one_machine ? "127.0.0.1" : net::host_name()),
                          "replicas");
  const auto& address = addresses[first];
  const auto space = address.find(' ');
  cluster::Environment environment;
  environment.rank = at;
  environment.world_size = each;
  std::vector<int> own(nodes.begin() + number * each, nodes.begin() + (number + 1) * each);
  environment.local_world_size =
      static_cast<int>(std::ranges::count(own, own[static_cast<size_t>(at)]));
  environment.local_rank =
      static_cast<int>(std::count(own.begin(), own.begin() + at, own[static_cast<size_t>(at)]));
  const std::set<int> machines(own.begin(), own.end());
  environment.num_nodes = static_cast<int>(machines.size());
  environment.node_rank = static_cast<int>(
      std::distance(machines.begin(), machines.find(own[static_cast<size_t>(at)])));
  environment.master_port = static_cast<int>(parse_int(address.substr(0, space)).value());
  environment.master_address = address.substr(space + 1);
  auto how = world_options(options);
  if (how.backend == "mpi") how.backend = "auto";
  return comm::world(environment, how);
}

}  // namespace

ReplicaRun make_replica_run(const TrainOptions& options, layout::Plan plan,
                            const comm::Group& all) {
  using layout::Axis;
  const int replicas = plan.mesh.size(Axis::data), each = all.size() / replicas;
  const int number = all.rank() / each, at = all.rank() % each;
  if (each == 1) {
    plan.mesh = layout::Mesh(Axis::data, 1);
    return {number, replicas, std::move(plan), comm::local::alone(all.options()),
            parallel::ReplicaPlace::of_each(all)};
  }
  plan.mesh = layout::Mesh::parse(fmt::format("pipeline={} data=1 tensor={}",
                                              plan.mesh.size(Axis::pipeline),
                                              plan.mesh.size(Axis::tensor)));
  std::vector<std::string> prefixes;
  for (int place = 0; place < each; ++place) prefixes.push_back(fmt::format("place-{}.", place));
  return {number,
          replicas,
          std::move(plan),
          own_world(options, all, number, at, each),
          {.replicas = *all.split(at, number),
           .all = all,
           .prefix = prefixes[static_cast<size_t>(at)],
           .prefixes = prefixes}};
}

TrainOptions replica_options(const TrainOptions& options, const ReplicaRun& run,
                             const std::filesystem::path& folder) {
  auto own = options;
  own.trainer.devices = own.trainer.num_nodes = -1;
  if (run.ranks.size() > 1 && own.mesh.axes.empty()) own.mesh.data = 1;
  if (!own.mesh.axes.empty()) own.mesh.axes = run.plan.mesh.text();
  if (own.data.global_batch_size > 0) own.data.global_batch_size /= run.replicas;
  const auto& handle = options.trainer.ckpt_path;
  const auto& all = run.place.all;
  std::string checkpoint;
  if (!handle.empty() && all.rank() == 0) {
    checkpoint = checkpoint::find_checkpoint(folder / "checkpoints", handle).string();
  }
  checkpoint = all.broadcast_text(checkpoint, 0, "checkpoint of the replicas");
  if (run.number == 0) return own;
  own.trainer.ckpt_path = checkpoint;
  own.trainer.enable_progress_bar = false;
  own.trainer.enable_model_summary = false;
  own.run.folder = (folder / "replicas").string();
  own.run.name = std::to_string(run.number);
  std::filesystem::create_directories(folder / "replicas" / own.run.name);
  return own;
}

}  // namespace troika::train
