// The weights of a run on disk, under PyTorch's parameter names. They are for using a model;
// resume.h has what a run goes on from.
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

// Where the run stood, and how it was laid out.
struct CheckpointInfo {
  int64_t epoch = 0;  // complete ones
  int64_t step = 0;
  std::string plan = {};  // layout::Plan::text(); empty: no other axis than that of data
};

// The state of one rank that its further course depends on. What ranks have parts of has boxes: all
// ranks' hold each element once, or the same more than once.
struct RankState {
  NamedTensors model;  // under the module's own names
  NamedTensors rest;   // optimizer, loops, random numbers...: names as optimizer.fc.weight.exp_avg
};

// Leaves what a checkpoint of weights alone holds.
void keep_weights(RankState& state);

// The module's parameters and buffers, which the tensors share memory with. Those of `others`, with
// their boxes, stand in place of those of their names: masters, of which parameters are roundings,
// or parts of them.
NamedTensors model_state(const torch::nn::Module& module, const NamedTensors& others = {});

// Writes the file whole or not at all. `description` becomes part of its metadata, as the options
// that the model was trained with (train/checkpoint_options.h).
FileDigest save_weights(const std::filesystem::path& file, const NamedTensors& model,
                        const Metadata& description, const CheckpointInfo& info,
                        Publish publish = Publish::at_once);

// In the following, `path` is any of what find_checkpoint() takes; "last" and "best" are those of
// the run of the default options, runs/run.

// The folder of the run: `path` itself, where that is one (it may have no checkpoint yet), else
// that of the run which wrote the checkpoint into its `checkpoints`. Throws Error(usage).
std::filesystem::path find_run(const std::filesystem::path& path);

// Weights under PyTorch's names: of a checkpoint, put together from the files of all ranks and
// checked; or those of any other safetensors file.
NamedTensors load_weights(const std::filesystem::path& path);

// The metadata of a checkpoint's weights, or of any other safetensors file.
Metadata read_checkpoint_metadata(const std::filesystem::path& path);

// Copies load_weights() into the module; names and shapes must be the same.
void load_checkpoint(const std::filesystem::path& path, torch::nn::Module& module);

}  // namespace troika::checkpoint
