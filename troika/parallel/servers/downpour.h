// Downpour SGD: replicas of a module step parameters on servers, without waiting for each other
// (Dean et al., Large Scale Distributed Deep Networks, NIPS 2012, section 4.1 and algorithm 7.1).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "troika/comm/group.h"
#include "troika/layout/plan.h"
#include "troika/parallel/exchange.h"
#include "troika/parallel/servers/replica_place.h"
#include "troika/parallel/servers/served_parameters.h"
#include "troika/server/handle.h"

namespace troika::parallel {

class ReplicaNumbers;

struct DownpourOptions {
  // The optimizer of the servers: sgd or adagrad. The consistency must be eventual.
  ServedOptions served = {};
  layout::DownpourExchange downpour = {};
};

// One replica of a module of float32 or float64 parameters on the host. The ranks of a group are
// the replicas; or a replica has several ranks, each of which has this object for its part of the
// model. They wait for each other in the constructor and at cuts; after the constructor the
// group is not used, so that a replica that is lost costs its own gradients only.
//
//   Downpour downpour(*model, replicas, options);
//   const auto optimizer = downpour.own_optimizer();
//   loss.backward(); downpour.finish_backward(); downpour.step(*optimizer);
//
// A step adds its gradient to those that are not pushed yet. Every n_push steps their sum is
// pushed, with the learning rate of the step; the servers apply it when it arrives. The parameters
// are fetched every n_fetch steps, and replace this replica's. Between fetches, a step of SGD
// changes them, at local_rate times the learning rate. With `overlap`, a fetch is sent after one
// step and taken after the next one, and fetched parameters get this replica's SGD steps with the
// gradients that they lack. At most one push and one fetch are in flight: the endpoint's threads
// send and receive them while the replica computes.
//
// A replica that is alone, with n_fetch = n_push = 1 and without overlap, makes the steps of the
// optimizer in one process, bit for bit, for a learning rate and gradients of the parameters' type.
//
// synchronize_replicas() is a consistent cut: it pushes the rest of the gradients, waits for all
// replicas that are not lost and have not left, and reads the servers' exact parameters and states.
// Buffers are those of the first replica that takes part. Replicas may have made different numbers
// of steps. All replicas must make equally many cuts, spread_parameters() included. A cut waits as
// long as replicas push within each group's timeout.
//
// Calls to servers block for the group's timeout at most, and throw Error(server, peer or timeout).
class Downpour : public Exchange {
 public:
  // Checks that all ranks hold the same module, copies rank 0's state, and starts the servers, in
  // the ranks' processes or launched beside them. With warm_start_steps, other replicas than 0
  // block until replica 0 has made these steps, comes to a cut, or is lost. Throws Error(usage) for
  // another optimizer or consistency, and like ServedParameters. Called by all ranks; blocks.
  Downpour(torch::nn::Module& module, const ReplicaPlace& place, const DownpourOptions& options);
  // The same if each rank of the group is a replica.
  Downpour(torch::nn::Module& module, const comm::Group& replicas, const DownpourOptions& options)
      : Downpour(module, ReplicaPlace::of_each(replicas), options) {}
  // Leaves. A process with servers serves the others until they have ended, unless an exception is
  // on its way. Gradients that were not pushed are dropped: call synchronize_replicas() before.
  ~Downpour() override;

  std::unique_ptr<optim::FlatOptimizer> own_optimizer() override;
  // Multiplies this replica's gradient by `weight`. Returns whether it is above 0: the end of one
  // replica's data is not that of the others.
  bool begin_step(double weight) override;
  void finish_backward() override {}
  std::vector<optim::Parameter> parameters() const override;
  void step_by(const std::function<void()>& update) override;
  // Gives the parameters and states of the first replica to the servers and all replicas.
  void spread_parameters() override;
  void synchronize_replicas() override;
  void fetch_states() override { synchronize_replicas(); }
  // Returns the percentiles `staleness/p50` and `p95` and the maximum `staleness/max` over the
  // pushes of all replicas up to the last cut: how many pushes of other replicas came between the
  // fetch of the parameters of a push's oldest gradient and the push.
  std::vector<std::pair<std::string, double>> take_statistics() override;
  // Returns nothing: at a cut, all state is that of parameters and optimizer.
  optim::NamedTensors state() const override { return {}; }
  // Accepts the state of a DataParallel without codec, and ignores it.
  void load_state(const optim::NamedTensors& state) override;
  bool set_syncing(bool /*syncing*/) override { return true; }

 private:
  struct Fetch;

  bool has_sums() const;
  void add_gradients();
  // Steps the parameters by SGD with these gradients, which are in the order of parameters().
  void step_locally(const std::vector<at::Tensor>& gradients);
  void push();
  void start_fetch();
  void take_fetch();
  // Lets the other replicas begin, if they still wait for the warm start.
  void end_warm_start();
  // Ends this worker's step, waits until all workers have ended theirs, and begins the next one.
  void end_server_step();
  // Waits for the other replicas twice: after what all are to see, and after `read`, with `gives`
  // on the replica that gives what all take. Repeats the second part if this replica was lost.
  void make_cut(const std::function<void(bool gives)>& read);
  void wait_for_others(int64_t step);
  Deadline deadline() const;

  torch::nn::Module& module_;
  const layout::DownpourExchange options_;
  const std::string buffers_;  // the name of their table
  const int replica_;
  const Milliseconds timeout_;
  std::unique_ptr<ServedModel> model_;
  std::unique_ptr<ReplicaNumbers> numbers_;
  double factor_ = 1;                   // on gradients, of begin_step()
  std::optional<double> rate_;          // of the step that runs
  std::vector<at::Tensor> sums_;        // gradients to push; undefined: none
  int64_t steps_ = 0;                   // since the last cut
  int64_t warm_start_left_ = 0;         // steps for which the others wait
  std::unique_ptr<Fetch> fetch_;        // in flight; null: none
  std::vector<server::Handle> pushed_;  // the last push
};

}  // namespace troika::parallel
