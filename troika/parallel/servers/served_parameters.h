// Data parallelism on parameter servers: servers keep and step the parameters, ranks push gradients
// and pull parameters (Li et al., OSDI 2014).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "troika/comm/group.h"
#include "troika/layout/plan.h"
#include "troika/optim/optimizer.h"
#include "troika/parallel/exchange.h"

namespace troika::parallel {

class ServedModel;

struct ServedOptions {
  layout::ServerExchange servers = {};
  // The optimizer's options: sgd, adam, adamw or adagrad, without offload.
  optim::OptimizerOptions optimizer = {};
  // Returns the learning rate and weight decay of one parameter, as options that are otherwise
  // those of `optimizer`. Not set: they are the optimizer's.
  std::function<optim::OptimizerOptions(const optim::Parameter&)> optimizer_of = {};
};

// Trains a module of float32 or float64 parameters on the host with the servers that were launched
// beside the ranks (launched_world()), or with servers in the ranks' processes (embedded_world()):
//
//   ServedParameters served(*model, group, options);
//   const auto optimizer = served.own_optimizer();
//   loss.backward(); served.finish_backward(); served.step(*optimizer);
//
// The optimizer's step pushes this rank's gradients with its learning rate. The servers apply the
// mean of the ranks' gradients. With consistency sequential and bounded, they apply one update for
// each step of all ranks; with eventual they apply each rank's push by itself, divided by the
// number of ranks. step() then begins the rank's next step, which may wait for other ranks as the
// consistency says, and pulls the parameters. With sequential, a step equals DataParallel's up to
// rounding; buffers are rank 0's after synchronize_replicas(), not after each step.
//
// synchronize_replicas() is a consistent cut: it waits until the servers have applied all pushes of
// all ranks, which must have made the same number of steps. All ranks then have the servers' exact
// parameters and optimizer states. The states of own_optimizer() are those of the last cut.
//
// Calls to servers block for the group's timeout at most. If a rank is lost, they throw the group's
// error, which names it, or otherwise Error(server, peer or timeout).
class ServedParameters : public Exchange {
 public:
  // Checks that all ranks hold the same module, copies rank 0's state, and starts the servers.
  // Throws Error(usage) for an optimizer that servers do not have, for parameters of other types or
  // devices, and for filters that cannot work. Blocks.
  ServedParameters(torch::nn::Module& module, comm::Group group, const ServedOptions& options);
  // Ends this rank's servers. Other ranks must not need them any more: they have returned from the
  // same synchronize_replicas(), or have failed. Servers of their own processes end when all ranks
  // have left: the destructor waits for that for some seconds, unless an exception is on its way.
  ~ServedParameters() override;

  // Returns the optimizer for step(), with the states of PyTorch's names. This object must outlive
  // it. Must be called once.
  std::unique_ptr<optim::FlatOptimizer> own_optimizer() override;

  // The gradient counts with `weight`, as in DataParallel.
  bool begin_step(double weight) override;
  // Does nothing: step() pushes.
  void finish_backward() override {}
  std::vector<optim::Parameter> parameters() const override;
  void step_by(const std::function<void()>& update) override;
  // Gives the module's parameters and the optimizer's states, those of rank 0, to the servers.
  void spread_parameters() override;
  void synchronize_replicas() override;
  void fetch_states() override { synchronize_replicas(); }
  // Returns staleness_metrics() over the steps of all ranks: by how many steps the parameters of a
  // rank's step may have lacked gradients when they were pulled. Numbers above 1023 count as 1023.
  std::vector<std::pair<std::string, double>> take_statistics() override;
  // Returns nothing: all state is that of parameters and optimizer.
  optim::NamedTensors state() const override { return {}; }
  // Accepts the state of a DataParallel without codec, and ignores it.
  void load_state(const optim::NamedTensors& state) override;
  // Gradients stay on this rank until step(), so there is nothing to switch.
  bool set_syncing(bool /*syncing*/) override { return true; }

 private:
  void push(double rate);
  void begin_next_step();
  void give_to_servers();
  // Calls `act`. If it fails because a process is lost, throws the group's error if there is one
  // within limit_.
  void with_servers(const std::function<void()>& act);
  Deadline deadline() const;

  torch::nn::Module& module_;
  comm::Group group_;
  std::unique_ptr<ServedModel> model_;
  const std::chrono::nanoseconds limit_;  // in which a lost process is noticed
  double factor_ = 1;                     // on this rank's gradients, of begin_step()
  bool has_pushed_ = false;               // in this step
  bool is_cut_ = true;                    // no step has been made since the last cut
  std::vector<int64_t> staleness_;        // number of steps by their staleness
};

}  // namespace troika::parallel
