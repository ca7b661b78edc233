// Checkpoints from which a run resumes on any number of ranks. Each is a folder in which every rank
// writes its own shard. docs/trainer.md describes the format.
#pragma once

#include <filesystem>
#include <string>

#include "troika/checkpoint/checkpoint.h"
#include "troika/comm/group.h"

namespace troika::checkpoint {

// Writes `folder`/epoch=E-step=S (with -v1, -v2... if the name is taken), then moves the links
// `folder`/last and `folder`/last.safetensors (its weights) to it. If the process is killed at any
// instant, `last` is either the old checkpoint or the new one. A tensor that several ranks hold is
// written by one of them, so that all ranks write about the same number of bytes; only the whole
// tensors of rank 0's model are always written by rank 0, into one file. Called by all ranks, which
// must share the file system; blocks. Returns the new folder's path.
std::filesystem::path save_checkpoint(const comm::Group& group, const std::filesystem::path& folder,
                                      const RankState& state, const Metadata& description,
                                      const CheckpointInfo& info);

// Returns the absolute path to which write_checkpoint() writes: rank 0's `path`. Called by all
// ranks; blocks. Throws Error(usage) on all ranks if `path` exists and is no checkpoint.
std::filesystem::path checkpoint_path(const comm::Group& group, const std::filesystem::path& path);

// Writes a checkpoint as the folder `path` itself and moves no links. Replaces an existing
// checkpoint there, atomically if the file system supports it. Called by all ranks; blocks. Returns
// checkpoint_path().
std::filesystem::path write_checkpoint(const comm::Group& group, const std::filesystem::path& path,
                                       const RankState& state, const Metadata& description,
                                       const CheckpointInfo& info);

// Finds the checkpoint or weights that a user's handle refers to:
// - "last" or "best" of the run whose checkpoints are in `folder`; empty if there is none yet;
// - the folder of a run, or `checkpoints` in it: its last checkpoint; also RUN/last and RUN/best;
// - the folder of a checkpoint, or the model.safetensors in it;
// - any other file, which is assumed to hold weights.
// Follows links. Returns a checkpoint's folder or a file; empty for an empty `handle`. Throws
// Error(usage) for anything else.
std::filesystem::path find_checkpoint(const std::filesystem::path& folder,
                                      const std::string& handle);

// Whether `path` is `folder` or inside it, after following links.
bool lies_in(const std::filesystem::path& path, const std::filesystem::path& folder);

// begin_course() marks the start of a new run in `folder`. has_last_of_course() returns whether
// `folder`/last was written since then. If so, a restarted run resumes from it; if not, it belongs
// to an earlier run of the same name.
bool has_last_of_course(const std::filesystem::path& folder);
void begin_course(const std::filesystem::path& folder);

// Removes a folder written by save_checkpoint(). If the process is killed meanwhile,
// clean_up_unfinished() removes the rest.
void remove_checkpoint(const std::filesystem::path& checkpoint);

// Makes `link` a symbolic link to `target`; replaces an existing link atomically.
void move_link(const std::filesystem::path& link, const std::filesystem::path& target);

// Cleans up after killed runs and copies of the folder: removes half-written checkpoints, moves
// `last` to a checkpoint that was already published, and turns `last` and `best` into links again
// if copying has made them folders.
void clean_up_unfinished(const std::filesystem::path& folder);

// Returns the checkpoint that the link `folder`/`name` points to, if its name is one of
// save_checkpoint(); otherwise empty.
std::filesystem::path linked_checkpoint(const std::filesystem::path& folder,
                                        const std::string& name);

}  // namespace troika::checkpoint
