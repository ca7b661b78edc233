// The weights of a run on disk: one safetensors file under PyTorch's parameter names, whatever the
// number of ranks was. It holds no optimizer state, so it is for using a model, not for resuming.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "troika/base/config.h"
#include "troika/train/safetensors.h"

namespace torch::nn {
class Module;
}

namespace troika::train {

struct TrainOptions;

struct CheckpointInfo {
  int64_t epoch = 0;
  int64_t step = 0;
  // Saved in place of the module's tensors of these names: what those are the roundings of.
  NamedTensors masters = {};
};

// Writes `folder`/epoch=E-step=S.safetensors, then moves the link `folder`/last.safetensors to it,
// then removes the file the link pointed to before: a kill at any instant leaves a loadable `last`.
// The options that made the model travel in the file's metadata. Returns the new file's path.
std::filesystem::path save_checkpoint(const std::filesystem::path& folder,
                                      const torch::nn::Module& module, const TrainOptions& options,
                                      const CheckpointInfo& info);

// The options a checkpoint was trained with: enough to make its model again.
TrainOptions read_checkpoint_options(const std::filesystem::path& file);

// Copies a checkpoint's tensors into the module; names and shapes must be the same.
void load_checkpoint(const std::filesystem::path& file, torch::nn::Module& module);

}  // namespace troika::train
