// The weights of a run on disk, under PyTorch's parameter names, for using a model. See resume.h
// for the state from which a run resumes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "troika/checkpoint/safetensors.h"
#include "troika/layout/box.h"

namespace torch::nn {
class Module;
}

namespace troika::checkpoint {

// The progress and the layout of a run when it saved a checkpoint.
struct CheckpointInfo {
  int64_t epoch = 0;  // completed epochs
  int64_t step = 0;
  std::string plan = {};  // layout::Plan::text(); empty: a data axis only
};

// The state of one rank from which training continues. Entries of sharded tensors have boxes; the
// boxes of all ranks must cover each element, and overlapping boxes must hold the same values.
struct RankState {
  NamedTensors model;  // under the module's own names
  NamedTensors rest;   // all other state, under names such as optimizer.fc.weight.exp_avg
};

// Removes everything that a weights-only checkpoint does not hold.
void keep_weights(RankState& state);

// Returns the module's parameters and buffers; the tensors share memory with it. An entry of
// `others`, with its box, replaces the module's entry of the same name: for example a float32
// master, or a shard.
NamedTensors model_state(const torch::nn::Module& module, const NamedTensors& others = {});
// The same replacement, in given entries of a module.
NamedTensors replaced(NamedTensors state, const NamedTensors& others);

// Writes the file whole or not at all. `description` becomes part of its metadata, for example the
// options that the model was trained with (train/options/checkpoint_options.h).
FileDigest save_weights(const std::filesystem::path& file, const NamedTensors& model,
                        const Metadata& description, const CheckpointInfo& info,
                        Publish publish = Publish::at_once);

// In the following functions, `path` may be any handle that find_checkpoint() accepts. "last" and
// "best" refer to the run of the default options, runs/run.

// Returns the folder of a run: `path` itself if it is one (with or without checkpoints), otherwise
// the folder of the run that wrote the checkpoint `path` into its `checkpoints`. Throws
// Error(usage) if there is none.
std::filesystem::path find_run(const std::filesystem::path& path);

// Loads weights under PyTorch's names: from a checkpoint, assembled from the files of all ranks and
// verified by checksums, or from any other safetensors file, index or folder of a model
// (weight_files.h).
NamedTensors load_weights(const std::filesystem::path& path);

// Reads the metadata of a checkpoint's weights or of any other safetensors file.
Metadata read_checkpoint_metadata(const std::filesystem::path& path);

// Copies load_weights() into the module; names and shapes must match.
void load_checkpoint(const std::filesystem::path& path, torch::nn::Module& module);

}  // namespace troika::checkpoint
