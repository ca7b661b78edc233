// The engine of a peer of a swarm that trains by itself between outer steps (docs/swarm.md).
#pragma once

#include "troika/parallel/swarm/local_updates.h"
#include "troika/train/engine/swarm_steps.h"

namespace troika::train {

// A step is a round: the peer makes an inner step with each micro-batch, and when the swarm has the
// samples of the round, an outer step by the mean of all peers' changes. With a delay, the peer
// makes so many inner steps of the next round before the outer step, or fewer if the next round is
// due. A round that ends early keeps what the peer has learned in it.
class LocalSwarmEngine : public SwarmSteps {
 public:
  // EngineSetup::swarm must be set.
  explicit LocalSwarmEngine(const EngineSetup& setup);

  StepResult step(MicroBatches& batches) override;
  [[nodiscard]] std::function<void()> load(const checkpoint::CheckpointReader& saved,
                                           const checkpoint::NamedTensors& gradients) override;

 private:
  // Makes an inner step. False: there is no micro-batch now.
  bool train(MicroBatches& batches, Portion& own);
  // Gives the changes of this round to the average, and waits for it.
  Outcome average(MicroBatches& batches, Portion& own);

  parallel::LocalUpdates& updates_;
  int64_t made_ = 0;  // micro-batches since changes were sent
};

}  // namespace troika::train
