// The engine of a peer of a swarm with delayed updates (docs/swarm.md).
#pragma once

#include "troika/train/engine/swarm_engine.h"

namespace troika::train {

// A step computes the gradient of the next step while the swarm averages that of this one, and then
// updates the weights (hivemind's delay_optimizer_step). So each gradient is that of the weights
// before the last update. The first step also computes its own gradient before that, in a call of
// step() that remains incomplete. A run's last step computes one micro-batch that does not count.
// While the peer is paused, it takes no micro-batches in any of them: it ends the average that is
// on its way, and follows.
class DelayedSwarmEngine : public SwarmEngine {
 public:
  using SwarmEngine::SwarmEngine;

  StepResult step(MicroBatches& batches) override;

 private:
  // Computes micro-batches until the average is over that is on its way, and, but for the last
  // step, the swarm has the samples of the next one; during a pause it rests instead. False: the
  // step cannot be made now.
  bool compute(MicroBatches& batches, Portion& own);
  // Ends the average if it is over, or waits for it if this peer need not compute more. False: the
  // run was asked to stop.
  bool end_average(const Portion& own, bool is_last);
  bool is_last(const MicroBatches& batches) const;
};

}  // namespace troika::train
