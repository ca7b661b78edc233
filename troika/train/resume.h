// Checkpoints that a run goes on from, on any number of ranks: a folder each, in which every rank
// writes its own share. docs/trainer.md has the format.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "troika/comm/group.h"
#include "troika/train/checkpoint.h"
#include "troika/train/safetensors.h"

namespace troika::train {

// What the course of one rank depends on.
struct RankState {
  NamedTensors model;  // under the module's own names
  NamedTensors rest;   // optimizer, loops, random numbers...: names as optimizer.fc.weight.exp_avg
};

// Writes `folder`/epoch=E-step=S (with -v1, -v2... where that is taken), then moves the links
// `folder`/last and `folder`/last.safetensors (its weights) to it. A kill at any instant leaves the
// former `last` or the new one. Tensors that are the same bits as rank 0's are written once, by it.
// Called by all ranks, which must share the folder; blocks. Returns the new folder's path.
std::filesystem::path save_checkpoint(const comm::Group& group, const std::filesystem::path& folder,
                                      const RankState& state, const TrainOptions& options,
                                      const CheckpointInfo& info);

// How many ranks wrote a checkpoint. Throws Error(usage) where the path is none, or damaged.
int checkpoint_ranks(const std::filesystem::path& checkpoint);

// What rank `rank` of those that wrote it had; rank 0's for a rank there was not. Throws
// Error(usage) naming the file where one that it reads is not as it was written.
RankState load_rank_state(const std::filesystem::path& checkpoint, int rank);

// The checkpoint that trainer.ckpt_path means: empty for none, which is also what "last" and
// "best" mean before the first one was written. `folder` holds the run's checkpoints. Throws
// Error(usage) for another path that is no checkpoint.
std::filesystem::path find_checkpoint(const std::filesystem::path& folder,
                                      const std::string& ckpt_path);

// Removes a folder that save_checkpoint() wrote; a kill meanwhile leaves what remove_unfinished()
// removes.
void remove_checkpoint(const std::filesystem::path& checkpoint);

// Makes `link` a symbolic link to `target`, in one step where there is a link already.
void move_link(const std::filesystem::path& link, const std::filesystem::path& target);

// Removes what killed runs left half-written.
void remove_unfinished(const std::filesystem::path& folder);

// The checkpoint that the link `folder`/`name` points to, if save_checkpoint() may have written it;
// else empty.
std::filesystem::path linked_checkpoint(const std::filesystem::path& folder,
                                        const std::string& name);

}  // namespace troika::train
