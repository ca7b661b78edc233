// Checkpoints that a run goes on from, on any number of ranks: a folder each, in which every rank
// writes its own share. docs/trainer.md has the format.
#pragma once

#include <filesystem>
#include <string>

#include "troika/checkpoint/checkpoint.h"
#include "troika/comm/group.h"

namespace troika::checkpoint {

// Writes `folder`/epoch=E-step=S (with -v1, -v2... where that is taken), then moves the links
// `folder`/last and `folder`/last.safetensors (its weights) to it. A kill at any instant leaves the
// former `last` or the new one. What several ranks have is written by one of them, so that all
// write about as many bytes; but rank 0 writes the whole tensors of its model, into one file.
// Called by all ranks, which must share the folder; blocks. Returns the new folder's path.
std::filesystem::path save_checkpoint(const comm::Group& group, const std::filesystem::path& folder,
                                      const RankState& state, const Metadata& description,
                                      const CheckpointInfo& info);

// The absolute path that write_checkpoint() writes to: rank 0's `path`. Called by all ranks;
// blocks. Throws Error(usage) on all ranks if something else than a checkpoint is there.
std::filesystem::path checkpoint_path(const comm::Group& group, const std::filesystem::path& path);

// Writes the same to the folder `path` itself and moves no links. A checkpoint that is there
// already is replaced, in one step where the file system can do that. Called by all ranks; blocks.
// Returns checkpoint_path().
std::filesystem::path write_checkpoint(const comm::Group& group, const std::filesystem::path& path,
                                       const RankState& state, const Metadata& description,
                                       const CheckpointInfo& info);

// The checkpoint that a user's words mean, wherever a checkpoint or weights are asked for:
// - "last" or "best": that of the run whose checkpoints are in `folder`; empty before there is one;
// - the folder of a run, or `checkpoints` in it: its last one; RUN/last and RUN/best;
// - the folder of a checkpoint, or the model.safetensors in it;
// - any other file, which is taken for one of weights.
// Links are followed. Returns a checkpoint's folder, or the file; nothing for an empty `handle`.
// Throws Error(usage) for anything else.
std::filesystem::path find_checkpoint(const std::filesystem::path& folder,
                                      const std::string& handle);

// Whether `path` is `folder` or something in it, links followed.
bool lies_in(const std::filesystem::path& path, const std::filesystem::path& folder);

// Whether `folder`/last is of the course that begin_course() began, so of what a run that is
// started again goes on from. Another run of that name may have left one before.
bool has_last_of_course(const std::filesystem::path& folder);
void begin_course(const std::filesystem::path& folder);

// Removes a folder that save_checkpoint() wrote; a kill meanwhile leaves what settle_unfinished()
// removes.
void remove_checkpoint(const std::filesystem::path& checkpoint);

// Makes `link` a symbolic link to `target`, in one step where there is a link already.
void move_link(const std::filesystem::path& link, const std::filesystem::path& target);

// Removes what killed runs left half-written, moves `last` to what they had published already, and
// makes `last` and `best` links again where a copy of the folder has made them folders.
void settle_unfinished(const std::filesystem::path& folder);

// The checkpoint that the link `folder`/`name` points to, if save_checkpoint() may have written it;
// else empty.
std::filesystem::path linked_checkpoint(const std::filesystem::path& folder,
                                        const std::string& name);

}  // namespace troika::checkpoint
