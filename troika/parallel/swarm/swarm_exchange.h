// Gradients that are averaged over the peers of a swarm: docs/swarm.md.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "troika/parallel/swarm/swarm_store.h"

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
class SwarmExchange : public SwarmStore {
 public:
  using SwarmStore::SwarmStore;

  size_t exact() const override;
  bool compresses() const override { return exact() < size(); }
  // How many values there are.
  size_t size() const;
  // That of the module, and of the delayed mean.
  std::string digest() const override;
  // With a delayed mean, the swarm is a step ahead of the weights.
  int64_t steps_ahead() const override { return delayed_ ? 1 : 0; }
  // Returns the values, with the gradients times `factor`. Only gradients can be other than finite.
  at::Tensor gather(double factor) const;
  // Replaces gradients and buffers. A parameter without a gradient at all peers gets none; at some
  // peers, theirs counts as zero. A buffer becomes the mean of those that are finite; if none is,
  // it stays as it is.
  void spread(const at::Tensor& values);

  // Gives values to an average, which is on its way then. The values are this object's from now on.
  void begin_average(at::Tensor values, double weight);
  bool is_averaging() const { return is_averaging_; }
  // Waits for the end of the average: SwarmMember::finish(). The mean is a delayed one then.
  SwarmMember::Outcome end_average(const SwarmMember::Stops& stops);
  bool has_delayed() const { return delayed_.has_value(); }
  bool has_average() const { return is_averaging_ || has_delayed(); }
  // spread() of the delayed mean, which is applied then.
  void spread_delayed() { spread(*std::exchange(delayed_, std::nullopt)); }

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

  void step_by(const std::function<void()>& update) override { update(); }
  void synchronize_replicas() override {}
  // Waits for an average that is on its way.
  void fetch_states() override;
  void make_whole() override { fetch_states(); }
  // The delayed mean. Without one, a step depends on the module and the optimizer alone.
  optim::NamedTensors state() const override;
  void load_state(const optim::NamedTensors& state) override;

 private:
  // How many numbers stand before the gradients.
  int64_t flags() const { return static_cast<int64_t>(trained().size() + buffers().size()); }
  void keep_begun();
  // A tensor in the values, and the share of the weights of peers that have it.
  struct Part {
    std::string name;
    at::Tensor mean;
    at::Tensor share;
  };
  // First those of gradients, and then those of buffers; they share memory with `values`.
  std::vector<Part> parts_of(const at::Tensor& values) const;

  bool is_averaging_ = false;
  at::Tensor given_;                   // to the average that is on its way
  std::optional<at::Tensor> delayed_;  // a mean that is not applied yet
  std::vector<at::Tensor> begun_;      // copies of the buffers from which the next step goes on
};

}  // namespace troika::parallel
