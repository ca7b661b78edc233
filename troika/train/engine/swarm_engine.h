// The engine of a peer of a swarm (docs/swarm.md).
#pragma once

#include <map>
#include <string>

#include "troika/parallel/swarm/swarm_exchange.h"
#include "troika/train/engine/swarm_steps.h"

namespace troika::train {

// A step ends with the mean of the gradients of all peers. If it ends early, its samples are lost.
class SwarmEngine : public SwarmSteps {
 public:
  // EngineSetup::swarm must be set.
  explicit SwarmEngine(const EngineSetup& setup);

  StepResult step(MicroBatches& batches) override;
  // With the buffers of the beginning of the step, which forward passes change.
  checkpoint::RankState state(bool in_step) const override;
  [[nodiscard]] std::function<void()> load(const checkpoint::CheckpointReader& saved,
                                           const checkpoint::NamedTensors& gradients) override;

 protected:
  parallel::SwarmExchange& gradients() { return gradients_; }
  // Computes the next micro-batch, and reports it if it `counts`. False: there is none now.
  bool add_micro_batch(MicroBatches& batches, Portion& own, bool counts = true);
  // The values of this peer's average. The samples become 0 if the gradients are not finite.
  at::Tensor contribution(Portion& own);
  // The buffers are those of the beginning of a step, and again those.
  void keep_buffers();
  void show_kept_buffers();

 private:
  // As contribution(), and replaces the gradients by the mean if the outcome is one.
  Outcome average(Portion& own);

  parallel::SwarmExchange& gradients_;
  std::map<std::string, at::Tensor> buffers_;  // copies
};

}  // namespace troika::train
