// Arguments that all subcommands with a training configuration share.
#pragma once

#include <string>
#include <vector>

#include "troika/base/config.h"
#include "troika/data/dataset.h"
#include "troika/nn/zoo.h"
#include "troika/train/options/options.h"

namespace troika::cli {

// CONFIG, unless `file` is empty, and over it the arguments `--section.name=value`.
void read_configuration(config::Table& table, const std::string& file,
                        const std::vector<std::string>& arguments);

// Whether CONFIG is a checkpoint (see kCheckpointHelp) and not a file in TOML, by its form.
bool names_checkpoint(const std::string& config);

// The options that the checkpoint was trained with, and over them the arguments; its weights are
// those of trainer.ckpt_path. `table` is that of `options`.
void read_checkpoint_configuration(config::Table& table, train::TrainOptions& options,
                                   const std::string& checkpoint,
                                   const std::vector<std::string>& arguments);

// The model takes what the data set gives. Throws Error(usage) where it cannot.
nn::ModelOptions fit_model(nn::ModelOptions model, const data::Dataset& dataset);

}  // namespace troika::cli
