// The final state of a run, for checkpoints saved after fit().
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "troika/checkpoint/checkpoint.h"
#include "troika/comm/group.h"
#include "troika/train/options/options.h"

namespace troika::train {

// The weights of the state share memory with the module, unless shards, float32 masters or averages
// replace them. If the module's weights change after the run, the state is no longer the run's, so
// save() refuses. The constructor and save() hash each tensor of the model, on the host.
class EndedRun {
 public:
  EndedRun(const comm::Group& group, const TrainOptions& options, checkpoint::RankState state,
           const checkpoint::CheckpointInfo& info);

  // Implements Trainer::save_checkpoint(). Throws Error(usage) on all ranks if the module's weights
  // have changed on any rank.
  std::filesystem::path save(const std::filesystem::path& path, bool weights_only) const;

 private:
  // The first changed tensor of the model; empty if none has changed.
  std::string changed() const;

  comm::Group group_;
  TrainOptions options_;
  checkpoint::RankState state_;
  checkpoint::CheckpointInfo info_;
  std::vector<std::vector<uint32_t>> checksums_;  // of the chunks of each tensor of the model
};

}  // namespace troika::train
