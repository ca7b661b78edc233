// The state in which fit() left a run, for checkpoints that are saved after it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "troika/checkpoint/checkpoint.h"
#include "troika/comm/group.h"
#include "troika/train/options/options.h"

namespace troika::train {

// Weights share memory with the module where no shards, masters or averages stand in their place,
// so a checkpoint is refused once the module holds others there. Each tensor of the model is hashed
// by the constructor and by save(), on the host.
class EndedRun {
 public:
  EndedRun(const comm::Group& group, const TrainOptions& options, checkpoint::RankState state,
           const checkpoint::CheckpointInfo& info);

  // As Trainer::save_checkpoint(). Throws Error(usage) on all ranks where the module's weights are
  // not what they were on one of them.
  std::filesystem::path save(const std::filesystem::path& path, bool weights_only) const;

 private:
  // The first tensor of the model that is not what it was; empty where there is none.
  std::string changed() const;

  comm::Group group_;
  TrainOptions options_;
  checkpoint::RankState state_;
  checkpoint::CheckpointInfo info_;
  std::vector<std::vector<uint32_t>> checksums_;  // of the chunks of each tensor of the model
};

}  // namespace troika::train
