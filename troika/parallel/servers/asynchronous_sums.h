// Data parallelism whose ranks do not wait for each other, over summation servers (BytePS's
// asynchronous mode: Jiang et al., OSDI 2020; BYTEPS_ENABLE_ASYNC of its program).
#pragma once

#include <memory>
#include <vector>

#include "troika/comm/group.h"
#include "troika/parallel/exchange.h"
#include "troika/parallel/servers/summation.h"

namespace troika::parallel {

// The servers keep the parameters. A step of a rank steps its optimizer with its own gradients and
// pushes its parameters; the servers add their change since the rank last got them, and return the
// parameters with the changes of all ranks so far. Ranks meet in synchronize_replicas() and
// spread_parameters() only. The states of optimizers stay local to each rank.
//
// A rank whose changes are the only ones makes the steps of its optimizer bit by bit. Parameters
// are float32 or float64, in the memory of the host.
class AsynchronousSums : public Exchange {
 public:
  // Checks that all ranks hold the same module, copies rank 0's state, and gives it to the servers.
  // Throws Error(usage) for other parameters. Called by all ranks; blocks.
  AsynchronousSums(torch::nn::Module& module, const comm::Group& group,
                   std::shared_ptr<SummationServers> servers);

  // Returns whether the weight is above 0: the end of one rank's data is not that of the others.
  bool begin_step(double weight) override;
  void finish_backward() override {}
  // clip_grad_norm() bounds the norm of this rank's own gradients.
  std::vector<optim::Parameter> parameters() const override { return parameters_; }
  // Throws the errors of SummationServers::finish().
  void step_by(const std::function<void()>& update) override;
  // Gives rank 0's parameters to the servers and all ranks.
  void spread_parameters() override;
  // Makes the parameters the servers' and the buffers rank 0's. Called by all ranks after equally
  // many calls.
  void synchronize_replicas() override;
  void fetch_states() override { synchronize_replicas(); }
  // Returns nothing: what the servers keep is the parameters.
  optim::NamedTensors state() const override { return {}; }
  // Accepts the state of a DataParallel without codec, and ignores it.
  void load_state(const optim::NamedTensors& state) override;
  bool set_syncing(bool /*syncing*/) override { return true; }

 private:
  torch::nn::Module& module_;
  comm::Group group_;
  std::vector<optim::Parameter> parameters_;
  std::vector<Bucket> values_;  // the memory of each parameter
  // The last member, as it leaves the servers: pushes use the memory above.
  std::shared_ptr<SummationServers> servers_;
};

}  // namespace troika::parallel
