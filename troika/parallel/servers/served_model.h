// The parameters of a module on parameter servers. Internal to the folder.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "troika/comm/group.h"
#include "troika/layout/plan.h"
#include "troika/optim/optimizer.h"
#include "troika/parallel/servers/replica_place.h"
#include "troika/server/handle.h"
#include "troika/server/table.h"

namespace torch::nn {
class Module;
}
namespace troika::server {
class Worker;
class World;
}  // namespace troika::server

namespace troika::parallel {

class ServedTable;
struct ServedOptions;

// Numbers of steps by their staleness, 0 to kMostStaleness; greater ones count as kMostStaleness.
inline constexpr int64_t kMostStaleness = 1023;
// Returns the percentiles `staleness/p50` and `p95`, the maximum `staleness/max`, and a histogram:
// the numbers of steps with a staleness in a range, as `staleness/steps_2_to_3`. Returns nothing if
// there are no steps.
std::vector<std::pair<std::string, double>> staleness_metrics(std::span<const int64_t> steps);

// The parameters' tables, and this process's worker. Functions block until `deadline` at most, and
// throw the errors of server::Handle::wait(). Not thread-safe.
class ServedModel {
 public:
  // Servers multiply each pushed gradient by `scale`. `prefix` begins the names of tables. Throws
  // Error(usage) for an optimizer that servers do not have, and for parameters of other types or
  // devices.
  ServedModel(const torch::nn::Module& module, const ServedOptions& options, double scale,
              const std::string& prefix = {});
  ~ServedModel();

  const std::vector<optim::Parameter>& parameters() const { return parameters_; }
  // Returns a parameter's own learning rate divided by that of the optimizer.
  double rate_factor(size_t parameter) const { return rate_factors_[parameter]; }
  // Returns an optimizer with the states of PyTorch's names, whose step calls `step` with its
  // learning rate. take_states() writes its states, which assign() reads. Called once.
  std::unique_ptr<optim::FlatOptimizer> make_optimizer(std::function<void(double rate)> step);

  // Starts the servers in the ranks' processes, or joins those that were launched; `others` are
  // more tables. Places have servers of their own, unless they were launched. Called by all ranks.
  // Blocks for the group's timeout at most.
  void start(const ReplicaPlace& place, const layout::ServerExchange& servers,
             server::Application application, const std::vector<server::TableSpec>& others = {});
  // Whether the servers are processes of their own.
  bool is_launched() const { return is_launched_; }
  // After start() has returned.
  server::World& world() { return *world_; }
  server::Worker& worker() { return *worker_; }

  // Pushes gradients in the order of parameters(), multiplied by `factor`; those that are undefined
  // are left out.
  std::vector<server::Handle> push(const std::vector<at::Tensor>& gradients, double rate,
                                   double factor);
  std::vector<server::Handle> pull();
  // Copies pulled values into the parameters.
  void take(const std::vector<server::Handle>& pulled, Deadline deadline) const;
  // Reads the exact parameters and states.
  void take_states(Deadline deadline);
  // Writes the parameters and states to the servers.
  void assign(Deadline deadline);

 private:
  class Optimizer;

  const optim::OptimizerOptions optimizer_;
  const std::vector<optim::Parameter> parameters_;
  const bool is_part_;                // of a replica of several ranks
  std::vector<double> rate_factors_;  // of parameters_
  std::vector<std::unique_ptr<ServedTable>> tables_;
  optim::NamedTensors states_;  // of the optimizer, whose memory they share
  bool is_launched_ = false;
  std::unique_ptr<server::World> world_;
  server::Worker* worker_ = nullptr;
};

}  // namespace troika::parallel
