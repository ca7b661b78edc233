// The weights of a run on disk: one safetensors file under PyTorch's parameter names, whatever the
// number of ranks was. It is for using a model; resume.h has what a run goes on from.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "troika/train/safetensors.h"

namespace torch::nn {
class Module;
}

namespace troika::train {

struct TrainOptions;

// Where the run stood.
struct CheckpointInfo {
  int64_t epoch = 0;  // complete ones
  int64_t step = 0;
};

// The module's parameters and buffers, which the tensors share memory with; `masters` stand in
// place of those of their names, which are their roundings.
NamedTensors model_state(const torch::nn::Module& module, const NamedTensors& masters = {});

// Writes the file whole or not at all. The options that made the model travel in its metadata.
FileDigest save_weights(const std::filesystem::path& file, const NamedTensors& model,
                        const TrainOptions& options, const CheckpointInfo& info);

// The options a checkpoint was trained with: enough to make its model again.
TrainOptions read_checkpoint_options(const std::filesystem::path& file);

// Copies a checkpoint's tensors into the module; names and shapes must be the same. Throws
// Error(usage) where the file is in a checkpoint's folder, or a link to one there, and damaged.
void load_checkpoint(const std::filesystem::path& file, torch::nn::Module& module);

}  // namespace troika::train
