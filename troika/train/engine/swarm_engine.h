// The engine of a peer of a swarm (docs/swarm.md).
#pragma once

#include <map>
#include <optional>
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

 protected:
  using Outcome = parallel::SwarmMember::Outcome;

  parallel::SwarmMember& swarm() { return swarm_; }
  parallel::SwarmExchange& gradients() { return gradients_; }
  // This peer's micro-batches of a step so far. Samples whose gradients are not finite are no part
  // of it.
  struct Portion {
    int64_t samples = 0, micro_batches = 0;
    std::optional<at::Tensor> loss = {};  // of the last micro-batch, until it is done
  };

  // Computes the next micro-batch, and reports it if it `counts`. False: there is none now.
  bool add_micro_batch(MicroBatches& batches, Portion& own, bool counts = true);
  // Lets go of the last micro-batch.
  static void finish(MicroBatches& batches, Portion& own);
  // The same at the end of a step, which may have no micro-batch of this peer.
  static void end_step(MicroBatches& batches, Portion& own);
  // The values of this peer's average. The samples become 0 if the gradients are not finite.
  at::Tensor contribution(Portion& own);
  // The buffers are those of the beginning of a step, and again those.
  void keep_buffers();
  void show_kept_buffers();

 private:
  // As contribution(), and replaces the gradients by the mean if the outcome is one.
  Outcome average(Portion& own);

  parallel::SwarmMember& swarm_;
  parallel::SwarmExchange& gradients_;
  std::map<std::string, at::Tensor> buffers_;  // copies
};

}  // namespace troika::train
