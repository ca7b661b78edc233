// A model that is cut over a tensor axis, and the exchange of gradients between its replicas.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "troika/comm/group.h"
#include "troika/parallel/exchange.h"
#include "troika/parallel/tensor/tensor_parallel.h"

namespace troika::parallel {

// Keeps a model cut over a tensor axis (TensorParallel), and trains its replicas along the data
// axis with another exchange, which knows of its own rank's shards only. Ranks of one tensor axis
// read the same samples. Norms and statistics count elements that several ranks hold once, and are
// the same bits on all ranks.
class TensorExchange : public Exchange {
 public:
  // Makes the exchange of the cut module over the ranks with the same shards.
  using MakeReplicas = std::function<std::unique_ptr<Exchange>()>;

  // Cuts the model, then calls `make_replicas`. The errors are those of both. Must be called by all
  // ranks of the mesh; blocks. The exchange of replicas must not shard parameters, and must give
  // the same bits to gradients at the same place in equal modules.
  TensorExchange(nn::Model& model, const comm::Group& axis, const SplitTable& table,
                 const TensorOptions& options, const MakeReplicas& make_replicas);

  // The trained parameters' shards, as tensors that keep their shapes after make_whole(). They have
  // gradients between finish_backward() and the end of step().
  std::vector<optim::Parameter> parameters() const override { return shards_; }
  std::vector<at::Tensor> gradients() const override { return replicas_->gradients(); }
  bool counts(const std::string& name) const override { return tensor_.counts(name); }
  // True: a rank has whole parameters again only after make_whole().
  bool shards_parameters() const override { return true; }
  const ParameterCut* cut_of(const std::string& name) const override {
    return tensor_.cut_of(name);
  }
  const GroupReducer& reducer() const override { return over_axis_; }
  void complete_sums(const at::Tensor& sums) const override {
    tensor_.complete_sums(shards_, sums);
  }
  void step_by(const std::function<void()>& update) override;
  void synchronize_replicas() override { replicas_->synchronize_replicas(); }
  // No steps may follow.
  void make_whole() override;

  bool begin_step(double weight) override { return replicas_->begin_step(weight); }
  void finish_backward() override;
  void continue_step() override { replicas_->continue_step(); }
  bool set_syncing(bool syncing) override { return replicas_->set_syncing(syncing); }
  optim::NamedTensors state() const override { return replicas_->state(); }
  void load_state(const optim::NamedTensors& state) override { replicas_->load_state(state); }

 protected:
  double squares_of_gradients() const override { return tensor_.gradient_squares(); }
  double squares_of_stage_gradients() const override { return tensor_.gradient_squares(); }

 private:
  class OverAxis : public GroupReducer {
   public:
    explicit OverAxis(comm::Group axis) : axis_(std::move(axis)) {}
    void sum(const at::Tensor& numbers, std::string_view label) const override;
    void max(const at::Tensor& numbers, std::string_view label) const override;

   private:
    const comm::Group axis_;
  };

  const OverAxis over_axis_;
  TensorParallel tensor_;
  std::unique_ptr<Exchange> replicas_;
  std::vector<optim::Parameter> shards_;
  std::vector<at::Tensor> trained_;  // the module's parameters, in the order of shards_
  bool is_whole_ = false;
};

}  // namespace troika::parallel
