// The interface of what the peers of a swarm average.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "troika/parallel/exchange.h"
#include "troika/parallel/swarm/swarm_member.h"

namespace troika::parallel {

// The exchange of a peer. The engine of a swarm decides when a step is made, so that
// finish_backward() does nothing.
class SwarmStore : public Exchange {
 public:
  // Both must outlive this object.
  SwarmStore(torch::nn::Module& module, SwarmMember& member);

  // Whether the values are in float64, otherwise in float32: if a parameter or a buffer is.
  bool is_double() const { return is_double_; }
  // How many numbers at the beginning of the values are not compressed.
  virtual size_t exact() const = 0;
  // Whether some numbers of the values are compressed (SwarmCompression).
  virtual bool compresses() const = 0;
  // Names, shapes and types of what is averaged.
  virtual std::string schema() const;
  // Digest of the state that peers share, after fetch_states().
  virtual std::string digest() const = 0;
  // How many steps the swarm is ahead of the module.
  virtual int64_t steps_ahead() const { return 0; }
  // The state of load_state() is that of another peer.
  virtual void join() {}

  // Throws Error(usage): the weight of a peer is its number of samples.
  bool begin_step(double weight) override;
  void finish_backward() override {}
  bool set_syncing(bool syncing) override { return std::exchange(is_syncing_, syncing); }
  std::vector<optim::Parameter> parameters() const override { return parameters_; }
  // swarm_peers: of the last group; swarm_steps, swarm_whole_steps, swarm_lone_steps, swarm_loads.
  std::vector<std::pair<std::string, double>> take_statistics() override;

 protected:
  using Buffers = std::vector<std::pair<std::string, at::Tensor>>;

  // Digest of names and values.
  static std::string digest_of(const optim::NamedTensors& tensors);

  const torch::nn::Module& module() const { return module_; }
  SwarmMember& member() const { return member_; }
  // The trained parameters.
  const std::vector<optim::Parameter>& trained() const { return parameters_; }
  // The buffers of floating-point numbers, and the counts of batch norms.
  const Buffers& buffers() const { return buffers_; }
  at::TensorOptions type() const { return is_double_ ? at::kDouble : at::kFloat; }
  bool is_compressed(const at::Tensor& parameter) const;

 private:
  const torch::nn::Module& module_;
  SwarmMember& member_;
  const std::vector<optim::Parameter> parameters_;
  Buffers buffers_;
  bool is_double_ = false;
  bool is_syncing_ = true;
};

}  // namespace troika::parallel
