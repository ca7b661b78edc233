// The weights of a run on disk, under PyTorch's parameter names. They are for using a model;
// resume.h has what a run goes on from.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "troika/layout/box.h"
#include "troika/train/checkpoint/safetensors.h"

namespace torch::nn {
class Module;
}

namespace troika::nn {
class Model;
}

namespace troika::train {

struct TrainOptions;

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

// Writes the file whole or not at all. The options that made the model travel in its metadata.
FileDigest save_weights(const std::filesystem::path& file, const NamedTensors& model,
                        const TrainOptions& options, const CheckpointInfo& info,
                        Publish publish = Publish::at_once);

// In the following, `path` is any of what find_checkpoint() takes; "last" and "best" are those of
// the run of the default options, runs/run.

// The folder of the run: `path` itself, where that is one (it may have no checkpoint yet), else
// that of the run which wrote the checkpoint into its `checkpoints`. Throws Error(usage).
std::filesystem::path find_run(const std::filesystem::path& path);

// Weights under PyTorch's names: of a checkpoint, put together from the files of all ranks and
// checked; or those of any other safetensors file.
NamedTensors load_weights(const std::filesystem::path& path);

// The options that a checkpoint was trained with: enough to make its model again, if that is one of
// the zoo's.
TrainOptions read_checkpoint_options(const std::filesystem::path& path);

// The model of a checkpoint of one of the zoo's, in training mode, with its weights in float32.
std::shared_ptr<nn::Model> load_from_checkpoint(const std::filesystem::path& path);

// Copies load_weights() into the module; names and shapes must be the same.
void load_checkpoint(const std::filesystem::path& path, torch::nn::Module& module);

}  // namespace troika::train
