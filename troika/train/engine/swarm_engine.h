// The engine of a peer of a swarm (docs/swarm.md).
#pragma once

#include <map>
#include <string>

#include "troika/parallel/swarm/swarm_exchange.h"
#include "troika/train/engine/single_stage_engine.h"

namespace troika::train {

// A step takes micro-batches until the swarm has the samples of its batch, and then the mean of the
// gradients of all peers. It ends early, incomplete, if this peer is behind the swarm
// (SwarmMember::is_behind()); its samples are lost then.
class SwarmEngine : public SingleStageEngine {
 public:
  // EngineSetup::swarm must be set.
  explicit SwarmEngine(const EngineSetup& setup);

  StepResult step(MicroBatches& batches) override;
  // With the buffers of the beginning of the step, which forward passes change.
  checkpoint::RankState state(bool in_step) const override;
  [[nodiscard]] std::function<void()> load(const checkpoint::CheckpointReader& saved,
                                           const checkpoint::NamedTensors& gradients) override;

 protected:
  using Outcome = parallel::SwarmMember::Outcome;

  parallel::SwarmMember& swarm() { return swarm_; }
  parallel::SwarmExchange& gradients() { return gradients_; }
  // The values of this peer's average. `samples` becomes 0 if they do not count, because the
  // gradients are not finite.
  at::Tensor contribution(int64_t& samples, int64_t micro_batches);
  // The buffers are those of the beginning of a step, and again those.
  void keep_buffers();
  void show_kept_buffers();

 private:
  // As contribution(), and replaces the gradients by the mean if the outcome is one.
  Outcome average(int64_t& samples, int64_t micro_batches);

  parallel::SwarmMember& swarm_;
  parallel::SwarmExchange& gradients_;
  std::map<std::string, at::Tensor> buffers_;  // copies
};

}  // namespace troika::train
