// First steps that average gradients, before replicas train by themselves.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "troika/comm/group.h"
#include "troika/parallel/data_parallel.h"
#include "troika/parallel/exchange.h"

namespace troika::parallel {

// Averages gradients as DataParallel does for some first steps, and goes on with another exchange
// of the same module: with LocalSteps, post-local SGD (Lin et al., ICLR 2020, arXiv 1808.07217,
// section 3).
class WarmUp : public Exchange {
 public:
  using Make = std::function<std::unique_ptr<Exchange>()>;
  // `then` makes the other exchange, after `steps` > 0 steps or in load_state(); called on all
  // ranks. The module and what `then` uses must outlive this object. Blocks.
  WarmUp(torch::nn::Module& module, comm::Group group, int64_t steps,
         const DataParallelOptions& options, Make then);

  bool begin_step(double weight) override { return now().begin_step(weight); }
  void finish_backward() override { now().finish_backward(); }
  void continue_step() override { now().continue_step(); }
  bool set_syncing(bool syncing) override { return now().set_syncing(syncing); }
  std::vector<optim::Parameter> parameters() const override { return now().parameters(); }
  std::vector<at::Tensor> gradients() const override { return now().gradients(); }
  void begin_training() override { now().begin_training(); }
  void step_by(const std::function<void()>& update) override;
  void synchronize_replicas() override { now().synchronize_replicas(); }
  void make_whole() override { now().make_whole(); }
  void fetch_states() override { now().fetch_states(); }
  std::vector<std::pair<std::string, double>> take_statistics() override {
    return now().take_statistics();
  }
  // Returns "warm_up" (its steps made), and either DataParallel's state as "synchronous.*" or that
  // of the other exchange.
  optim::NamedTensors state() const override;
  void load_state(const optim::NamedTensors& state) override;

 private:
  void make_beside_values();
  Exchange& now() const { return synchronous_ ? *synchronous_ : *then_; }

  torch::nn::Module& module_;
  const comm::Group group_;
  const int64_t length_;
  const DataParallelOptions options_;
  const Make make_;
  std::unique_ptr<Exchange> synchronous_, then_;  // one of them
  int64_t steps_ = 0;                             // made while gradients were averaged
};

}  // namespace troika::parallel
