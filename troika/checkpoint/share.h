// Which rank writes what of a checkpoint.
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

// A tensor, or a part of one, in a file.
struct SharePart {
  std::string key;    // in the file
  at::Tensor tensor;  // the elements of `box`, in its order
  layout::Box box;    // with the name of the whole tensor in the checkpoint
};

struct ShareFile {
  std::string name;
  std::vector<SharePart> parts;
};

// A number that is the same on all ranks for the same part of the same tensor.
using PlaceHash = uint64_t;

struct Share {
  // Written by this rank: one of its own, and on rank 0 before it that of the whole tensors of its
  // model.
  std::vector<ShareFile> files;
  // Taken to be what another rank writes.
  std::vector<SharePart> replicas;
};

// Tensors that several ranks have go to the one of them with least to write. Tensors of two ranks
// at the same place are taken for the same if samples of at most 128 KiB of their content are, by a
// hash of 64 bits; those at the places `compared` if their whole content is. Called by all ranks;
// blocks.
Share share_of(const comm::Group& group, const RankState& state,
               const std::set<PlaceHash>& compared = {});

// The places, of all ranks, at which a rank's replica is not what was written: its checksums, one
// list for each replica, are not those of the index. Called by all ranks, with the shares of all of
// them in the index; blocks.
std::set<PlaceHash> differing_places(const comm::Group& group, const CheckpointIndex& index,
                                     const std::vector<SharePart>& replicas,
                                     const std::vector<std::vector<uint32_t>>& checksums);

// Adds the file, as it was written, to what this rank says of its files.
void add_written(CheckpointIndex& index, const ShareFile& file, const FileDigest& digest);

}  // namespace troika::checkpoint
