// The base of the engines of peers of a swarm (docs/swarm.md).
#pragma once

#include <optional>

#include "troika/parallel/swarm/swarm_member.h"
#include "troika/train/engine/single_stage_engine.h"

namespace troika::train {

// A step takes micro-batches until the swarm has the samples of its batch. It ends early,
// incomplete, if this peer is behind the swarm (SwarmMember::is_behind()). While the peer is
// paused, it takes no micro-batches, and makes the steps of the others.
class SwarmSteps : public SingleStageEngine {
 public:
  // EngineSetup::swarm must be set.
  explicit SwarmSteps(const EngineSetup& setup) : SingleStageEngine(setup), swarm_(*setup.swarm) {}

 protected:
  using Outcome = parallel::SwarmMember::Outcome;

  parallel::SwarmMember& swarm() { return swarm_; }
  // This peer's micro-batches of a step so far. Samples whose gradients are not finite are no part
  // of it.
  struct Portion {
    int64_t samples = 0, micro_batches = 0;
    std::optional<at::Tensor> loss = {};  // of the last micro-batch, until it is done
  };

  // These samples have gradients that are not finite. Throws Error(failure) if that ends the peer;
  // otherwise they are left out.
  void leave_out(int64_t samples) const;
  // Lets go of the last micro-batch.
  static void finish(MicroBatches& batches, Portion& own);
  // The same at the end of a step, which may have no micro-batch of this peer.
  static void end_step(MicroBatches& batches, Portion& own);

 private:
  parallel::SwarmMember& swarm_;
};

}  // namespace troika::train
