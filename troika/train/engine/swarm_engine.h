// The engine of a peer of a swarm (docs/swarm.md).
#pragma once

#include <map>
#include <string>

#include "troika/parallel/swarm/swarm_exchange.h"
#include "troika/train/engine/single_stage_engine.h"

namespace troika::train {

// A step takes micro-batches until the swarm has the samples of its batch, and then the mean of the
// gradients of all peers. It ends early, incomplete, if this peer is behind the swarm
// (SwarmMember::is_behind()); its samples are lost then. While the peer is paused, it takes no
// micro-batches, and makes the steps of the others.
class SwarmEngine : public SingleStageEngine {
 public:
  // EngineSetup::swarm must be set.
  explicit SwarmEngine(const EngineSetup& setup);

  StepResult step(MicroBatches& batches) override;
  // With the buffers of the beginning of the step, which forward passes change.
  checkpoint::RankState state(bool in_step) const override;
  [[nodiscard]] std::function<void()> load(const checkpoint::CheckpointReader& saved,
                                           const checkpoint::NamedTensors& gradients) override;

 private:
  using Outcome = parallel::SwarmMember::Outcome;

  void keep_buffers();
  // Returns the outcome; `samples` becomes 0 if they do not count, because the gradients are not
  // finite.
  Outcome average(int64_t& samples, int64_t micro_batches);

  parallel::SwarmMember& swarm_;
  parallel::SwarmExchange& gradients_;
  std::map<std::string, at::Tensor> buffers_;  // copies
};

}  // namespace troika::train
