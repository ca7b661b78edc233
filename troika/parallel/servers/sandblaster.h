// Sandblaster L-BFGS: replicas compute the gradient of all samples portion by portion, and the
// vectors of L-BFGS are on parameter servers (Dean et al., Large Scale Distributed Deep Networks,
// NIPS 2012, section 4.2).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "troika/comm/group.h"
#include "troika/layout/plan.h"
#include "troika/parallel/exchange.h"
#include "troika/parallel/servers/coordination.h"

namespace troika::server {
class BatchReplica;
class Worker;
class World;
}  // namespace troika::server

namespace troika::parallel {

struct SandblasterOptions {
  layout::ServerExchange servers = {};  // consistency sequential, without filters
  layout::SandblasterExchange sandblaster = {};
};

// A portion of the samples that a replica is to compute.
struct PortionWork {
  uint64_t portion = 0;   // number
  uint64_t portions = 0;  // of all samples
  // Where the gradient is added: float64, the elements of parameters() one after the other.
  at::Tensor gradient;
  // Whether the result still counts. If not, the replica need not go on.
  std::function<bool()> is_wanted = {};
};

// One replica of a module of float32 or float64 parameters on the host. The ranks of a group are
// the replicas. After the constructor the group is not used, so a replica that is lost changes
// nothing: others compute its portions.
//
//   Sandblaster sandblaster(*model, replicas, options);
//   const auto optimizer = sandblaster.own_optimizer();
//   IterationNumbers numbers = sandblaster.iterate([&](PortionWork& work) { ... return loss; });
//
// The coordinator, in the process of the scheduler, makes an iteration of server::Lbfgs when all
// replicas that are left have called iterate(). Its objective is the sum of the portions' losses,
// and the penalty. The vectors are float64 also for a module of float32.
//
// Parameters, and the vectors of state(), do not change between two calls of iterate() and are the
// same for all replicas. Nothing else waits for other replicas.
class Sandblaster : public Exchange {
 public:
  // Returns the loss of a portion, whose gradient it adds to PortionWork::gradient; nullopt if the
  // result is not wanted any more. The module has the parameters for it.
  using Compute = std::function<std::optional<double>(const PortionWork& work)>;

  // Checks that all ranks hold the same module, copies rank 0's state, and starts the servers, in
  // the ranks' processes or launched beside them. Throws Error(usage) for parameters of other types
  // or devices. Called by all ranks; blocks.
  Sandblaster(torch::nn::Module& module, const comm::Group& replicas,
              const SandblasterOptions& options);
  // Leaves. A process with servers or the scheduler serves the others until they have ended, unless
  // an exception is on its way.
  ~Sandblaster() override;

  // Takes part in the next iteration of L-BFGS, and gives the module its parameters. Blocks: for
  // the group's timeout at most while no portion is to compute. Throws Error(server, peer) if the
  // coordinator or all copies of a vector were lost, and Error(server, timeout).
  IterationNumbers iterate(const Compute& compute);

  // Returns an optimizer without states whose step does nothing: iterate() steps.
  std::unique_ptr<optim::FlatOptimizer> own_optimizer() override;
  bool begin_step(double weight) override { return weight > 0; }
  void finish_backward() override {}
  std::vector<optim::Parameter> parameters() const override { return parameters_; }
  void step_by(const std::function<void()>& update) override { update(); }
  // The servers are to have the module's parameters, and no pairs. They get them before the next
  // iteration. All replicas that are left must call it alike, with the same parameters.
  void spread_parameters() override;
  // Does nothing: the parameters are the same.
  void synchronize_replicas() override {}
  // Reads the vectors that state() returns.
  void fetch_states() override;
  void make_whole() override { fetch_states(); }
  // Returns the numbers of the iterations since the last call: `lbfgs/evaluations`,
  // `lbfgs/backups` and `lbfgs/repeated` as sums, `lbfgs/gradient` and `lbfgs/step` of the last
  // one.
  std::vector<std::pair<std::string, double>> take_statistics() override;
  // Returns "x", "g", the vectors of the pairs and the table of numbers, as of fetch_states().
  optim::NamedTensors state() const override { return states_; }
  // The servers are to have these vectors, in place of those of spread_parameters(). All replicas
  // must call it alike. Accepts the state of a DataParallel without codec, which has no pairs.
  void load_state(const optim::NamedTensors& state) override;
  bool set_syncing(bool /*syncing*/) override { return true; }

 private:
  class Optimizer;

  void start(const comm::Group& group, const SandblasterOptions& options);
  // Copies float64 elements into the parameters.
  void set_parameters(const double* elements);
  // Keeps the values of a table for give_vectors().
  void set_vector(const std::string& table, const at::Tensor& values);
  // Writes the kept values to the servers. All replicas write the same values, and no others, so
  // one that is lost meanwhile changes nothing.
  void give_vectors();
  at::Tensor read(const std::string& table);
  // The length of a table.
  int64_t length(const std::string& table) const;
  Deadline deadline() const;

  const std::vector<optim::Parameter> parameters_;
  const layout::SandblasterExchange options_;
  const int replicas_;
  const Milliseconds timeout_;
  int64_t elements_ = 0;
  int64_t rounds_ = 0;    // that this replica has asked for
  bool is_read_ = false;  // states_ are those of the last round
  optim::NamedTensors states_;
  std::map<std::string, at::Tensor> unwritten_;  // float64 values of tables, flat
  std::vector<IterationNumbers> iterations_;     // since the last take_statistics()
  std::unique_ptr<server::World> world_;
  std::unique_ptr<Coordination> coordination_;  // on rank 0 of a world in the ranks' processes
  server::Worker* worker_ = nullptr;
  std::unique_ptr<server::BatchReplica> replica_;
};

}  // namespace troika::parallel
