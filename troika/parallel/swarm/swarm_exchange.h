// Gradients that are averaged over the peers of a swarm: docs/swarm.md.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "troika/parallel/exchange.h"
#include "troika/parallel/swarm/swarm_member.h"

namespace troika::parallel {

// The values that peers average, in order: for each trained parameter whether it has a gradient,
// for each buffer whether it is finite, the gradients that are not compressed, the buffers, and the
// gradients that are compressed (SwarmCompression). Buffers are those of floating-point numbers,
// and the counts of batch norms; others are left alone. In float64 if one
// of these tensors is, otherwise in float32. After a step without losses, all peers have the same
// bits of all of them.
//
// With delayed updates, a mean is kept until it is applied, and is a part of the state: gradients
// as delayed.gradient.NAME, and buffers as delayed.buffer.NAME.
//
// The engine of a swarm decides when a step is made, so that finish_backward() does nothing.
class SwarmExchange : public Exchange {
 public:
  // Both must outlive this object.
  SwarmExchange(torch::nn::Module& module, SwarmMember& member);

  bool is_double() const { return is_double_; }
  // How many numbers at the beginning of the values are not compressed, and how many there are.
  size_t exact() const;
  size_t size() const;
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

  // Gives values to an average, which is on its way then. The values are this object's from now on.
  void begin_average(at::Tensor values, double weight);
  bool is_averaging() const { return is_averaging_; }
  // Waits for the end of the average: SwarmMember::finish(). The mean is a delayed one then.
  SwarmMember::Outcome end_average(const SwarmMember::Stops& stops);
  bool has_delayed() const { return delayed_.has_value(); }
  bool has_average() const { return is_averaging_ || has_delayed(); }
  // spread() of the delayed mean, which is applied then.
  void spread_delayed() { spread(*std::exchange(delayed_, std::nullopt)); }
  // Digest of the delayed mean.
  std::string delayed_digest() const;

  // Gradients of the next step, beside those of a mean that is applied: one for each parameter, or
  // an undefined tensor.
  std::vector<at::Tensor> take_gradients();
  void put_gradients(const std::vector<at::Tensor>& gradients);
  // Changes of buffers by forward passes since begin_average() or load_state(); changes that are
  // not finite count as zero.
  std::vector<at::Tensor> changes_of_buffers() const;
  void add_to_buffers(const std::vector<at::Tensor>& changes);
  // Sets the buffers to those of that time, for the next forward pass.
  void go_on_with_buffers();

  void finish_backward() override {}
  bool set_syncing(bool syncing) override { return std::exchange(is_syncing_, syncing); }
  std::vector<optim::Parameter> parameters() const override { return parameters_; }
  void step_by(const std::function<void()>& update) override { update(); }
  void synchronize_replicas() override {}
  // swarm_peers: of the last group; swarm_steps, swarm_whole_steps, swarm_lone_steps, swarm_loads.
  std::vector<std::pair<std::string, double>> take_statistics() override;
  // Waits for an average that is on its way.
  void fetch_states() override;
  void make_whole() override { fetch_states(); }
  // The delayed mean. Without one, a step depends on the module and the optimizer alone.
  optim::NamedTensors state() const override;
  void load_state(const optim::NamedTensors& state) override;

 private:
  // How many numbers stand before the gradients.
  int64_t flags() const { return static_cast<int64_t>(parameters_.size() + buffers_.size()); }
  bool is_compressed(const at::Tensor& parameter) const;
  void keep_begun();
  // A tensor in the values, and the share of the weights of peers that have it.
  struct Part {
    std::string name;
    at::Tensor mean;
    at::Tensor share;
  };
  // First those of gradients, and then those of buffers; they share memory with `values`.
  std::vector<Part> parts_of(const at::Tensor& values) const;

  SwarmMember& member_;
  const std::vector<optim::Parameter> parameters_;
  std::vector<std::pair<std::string, at::Tensor>> buffers_;
  bool is_double_ = false;
  bool is_syncing_ = true;
  bool is_averaging_ = false;
  at::Tensor given_;                   // to the average that is on its way
  std::optional<at::Tensor> delayed_;  // a mean that is not applied yet
  std::vector<at::Tensor> begun_;      // copies of the buffers from which the next step goes on
};

}  // namespace troika::parallel
