// Stores a run's options in the metadata of its checkpoints, and rebuilds models of the zoo from
// them.
#pragma once

#include <filesystem>
#include <memory>

#include "troika/checkpoint/safetensors.h"
#include "troika/train/options/options.h"

namespace troika::nn {
class Model;
}

namespace troika::train {

// The key, in metadata, of a run's options as TOML.
inline constexpr const char* kOptionsKey = "troika.options";

// The `description` for checkpoint::save_weights(): the options as TOML, and the model sizes that
// follow from the data set.
checkpoint::Metadata checkpoint_metadata(const TrainOptions& options);

// Reads the options that a checkpoint was trained with. `path` is a checkpoint or a file of
// weights, as for checkpoint::load_weights(). Throws Error(usage) if the file has no options.
TrainOptions read_checkpoint_options(const std::filesystem::path& path);

// Rebuilds a model of the zoo from a checkpoint, in training mode, with float32 weights. Throws
// Error(usage) for other models and if read_checkpoint_options() does.
std::shared_ptr<nn::Model> load_from_checkpoint(const std::filesystem::path& path);

}  // namespace troika::train
