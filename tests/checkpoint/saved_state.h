// The whole state that a checkpoint holds for a rank.
#pragma once

#include <string>

#include "troika/checkpoint/reader.h"

namespace troika::checkpoint {

inline RankState load_rank_state(const std::filesystem::path& checkpoint, int rank) {
  const CheckpointReader saved(checkpoint, rank);
  RankState result{.model = saved.read_all(kModelPrefix), .rest = {}};
  for (const auto& name : saved.names("")) {
    if (!name.starts_with(kModelPrefix)) result.rest.emplace_back(name, saved.read(name));
  }
  return result;
}

inline int checkpoint_ranks(const std::filesystem::path& checkpoint) {
  return read_index(checkpoint).ranks;
}

}  // namespace troika::checkpoint
