// Which rank writes what of a checkpoint.
#pragma once

#include <string>
#include <vector>

#include "troika/comm/group.h"
#include "troika/train/checkpoint/checkpoint.h"
#include "troika/train/checkpoint/index.h"

namespace troika::train {

// A tensor, or a part of one, in a file.
struct SharePart {
  std::string name;  // of the whole tensor in the checkpoint
  std::string key;   // in the file
  at::Tensor tensor;
  std::vector<int64_t> shape;  // of the whole tensor
  int64_t offset = 0;
};

struct ShareFile {
  std::string name;
  std::vector<SharePart> parts;
};

// The files that this rank writes: one of its own, and on rank 0 before it that of the whole
// tensors of its model. What several ranks have, by a hash of 64 bits of name, place and content,
// goes to the one of them that has least to write. Called by all ranks; blocks.
std::vector<ShareFile> share_of(const comm::Group& group, const RankState& state);

// Adds the file, as it was written, to what this rank says of its files.
void add_written(CheckpointIndex& index, const ShareFile& file, const FileDigest& digest);

}  // namespace troika::train
