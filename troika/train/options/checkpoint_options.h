// The options of a run in the metadata of its checkpoints, from which a model of the zoo is made
// again.
#pragma once

#include <filesystem>
#include <memory>

#include "troika/checkpoint/safetensors.h"
#include "troika/train/options/options.h"

namespace troika::nn {
class Model;
}

namespace troika::train {

// What checkpoint::save_weights() takes as `description`: the options as TOML, and the sizes that
// the model has from its data set.
checkpoint::Metadata checkpoint_metadata(const TrainOptions& options);

// The options that a checkpoint was trained with. `path` is a checkpoint or a file of weights, as
// checkpoint::load_weights() takes it. Throws Error(usage) where the file has no options.
TrainOptions read_checkpoint_options(const std::filesystem::path& path);

// The model of a checkpoint of one of the zoo's models, in training mode, with its weights in
// float32. Throws Error(usage) where read_checkpoint_options() does, and for other models.
std::shared_ptr<nn::Model> load_from_checkpoint(const std::filesystem::path& path);

}  // namespace troika::train
