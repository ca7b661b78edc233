// Gradients that are averaged over the peers of a swarm: docs/swarm.md.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "troika/parallel/exchange.h"
#include "troika/parallel/swarm/swarm_member.h"

namespace troika::parallel {

// The values that peers average, in order: for each trained parameter whether it has a gradient,
// for each buffer whether it is finite, the gradients, and the buffers. These are the buffers of
// floating-point numbers, and the counts of batch norms; others are left alone. In float64 if one
// of these tensors is, otherwise in float32. After a step without losses, all peers have the same
// bits of all of them.
//
// The engine of a swarm decides when a step is made, so that finish_backward() does nothing.
class SwarmExchange : public Exchange {
 public:
  // Both must outlive this object.
  SwarmExchange(torch::nn::Module& module, SwarmMember& member);

  bool is_double() const { return is_double_; }
  // Names, shapes and types of the values.
  std::string schema() const;
  // Returns the values, with the gradients times `factor`. Only gradients can be other than finite.
  at::Tensor gather(double factor) const;
  // Replaces gradients and buffers. A parameter without a gradient at all peers gets none; at some
  // peers, theirs counts as zero. A buffer becomes the mean of those that are finite; if none is,
  // it stays as it is.
  void spread(const at::Tensor& values);

  // Throws Error(usage): the weight of a peer is its number of samples.
  bool begin_step(double weight) override;
  void finish_backward() override {}
  bool set_syncing(bool syncing) override { return std::exchange(is_syncing_, syncing); }
  std::vector<optim::Parameter> parameters() const override { return parameters_; }
  void step_by(const std::function<void()>& update) override { update(); }
  void synchronize_replicas() override {}
  // swarm_peers: of the last group; swarm_steps, swarm_whole_steps, swarm_lone_steps, swarm_loads.
  std::vector<std::pair<std::string, double>> take_statistics() override;
  // Has none: a step depends on the module and the optimizer alone.
  optim::NamedTensors state() const override { return {}; }
  void load_state(const optim::NamedTensors& state) override;

 private:
  // How many numbers stand before the gradients.
  int64_t flags() const { return static_cast<int64_t>(parameters_.size() + buffers_.size()); }

  SwarmMember& member_;
  const std::vector<optim::Parameter> parameters_;
  std::vector<std::pair<std::string, at::Tensor>> buffers_;
  bool is_double_ = false;
  bool is_syncing_ = true;
};

}  // namespace troika::parallel
