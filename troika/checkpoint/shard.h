// Divides a checkpoint among the ranks that write it.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "troika/checkpoint/checkpoint.h"
#include "troika/checkpoint/index.h"
#include "troika/comm/group.h"
#include "troika/layout/box.h"

namespace troika::checkpoint {

// A tensor or a part of one in a file.
struct ShardTensor {
  std::string key;    // its name in the file
  at::Tensor tensor;  // the elements of `box`, in row-major order
  layout::Box box;    // with the name of the whole tensor in the checkpoint
};

struct ShardFile {
  std::string name;
  std::vector<ShardTensor> parts;
};

// A number that is the same on all ranks for the same part of the same tensor.
using PlaceHash = uint64_t;

struct RankShard {
  // The files that this rank writes: its own file and, on rank 0 before it, the file of the whole
  // tensors of its model.
  std::vector<ShardFile> files;
  // Parts that are presumably equal to parts that another rank writes.
  std::vector<ShardTensor> replicas;
};

// Assigns a tensor that several ranks hold to the rank with the least to write among them. Tensors
// of two ranks at the same place count as equal if 64-bit hashes of a sample of their rows are
// equal; at the places in `compared`, the hash covers the whole content. Called by all ranks;
// blocks.
RankShard shard_of(const comm::Group& group, const RankState& state,
                   const std::set<PlaceHash>& compared = {});

// Returns the places, over all ranks, where a replica differs from the written tensor: its
// checksums (`checksums` has one list for each replica) differ from those in the index, which must
// hold the shards of all ranks. Called by all ranks; blocks.
std::set<PlaceHash> differing_places(const comm::Group& group, const CheckpointIndex& index,
                                     const std::vector<ShardTensor>& replicas,
                                     const std::vector<std::vector<uint32_t>>& checksums);

// Adds a written file to this rank's part of the index.
void add_written(CheckpointIndex& index, const ShardFile& file, const FileDigest& digest);

}  // namespace troika::checkpoint
