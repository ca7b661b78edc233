// Data parallelism among replicas that may be lost: docs/fault-tolerance.md.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "troika/parallel/exchange.h"
#include "troika/quorum/member.h"

namespace troika::parallel {

struct FaultTolerantOptions {
  // A replica whose own gradients are not finite throws Error(failure) before it adds them to those
  // of the others.
  bool require_finite = true;
};

// Averages gradients over the members of the step's quorum, weighted by their samples, after the
// backward pass. Before each step, Member::begin_step() must be called; finish_backward() commits
// the step. All members get the same bits: gradients, and the buffers of floating types of the
// lowest rank among them, as DataParallel does.
//
// A parameter without a gradient on all members keeps none; where only some lack one, theirs counts
// as zero. Sums are in float64 if a parameter is, otherwise in float32, on the host.
class FaultTolerant : public Exchange {
 public:
  // `member` has joined, and the module has the state with which it did. Both must outlive this
  // object.
  FaultTolerant(torch::nn::Module& module, quorum::Member& member,
                const FaultTolerantOptions& options = {});

  // Throws Error(usage): the weight of a member is its share of the step.
  bool begin_step(double weight) override;
  // Blocks until the step is committed, and throws the errors of Member::sum().
  void finish_backward() override;
  bool set_syncing(bool syncing) override;
  std::vector<optim::Parameter> parameters() const override { return parameters_; }
  void step_by(const std::function<void()>& update) override { update(); }
  // Members are equal after each step.
  void synchronize_replicas() override {}
  // samples_begun and samples_counted of all replicas since the run began, and the numbers of
  // replicas, now and lost.
  std::vector<std::pair<std::string, double>> take_statistics() override;
  // Has none: a step depends on the module and the optimizer alone.
  optim::NamedTensors state() const override { return {}; }
  void load_state(const optim::NamedTensors& state) override;

 private:
  template <typename Number>
  void average();

  quorum::Member& member_;
  const FaultTolerantOptions options_;
  const std::vector<optim::Parameter> parameters_;
  std::vector<at::Tensor> buffers_;  // of floating types
  bool is_double_ = false;
  bool is_syncing_ = true;
};

}  // namespace troika::parallel
