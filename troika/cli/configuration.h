// The arguments of all subcommands that take a training configuration.
#pragma once

#include <string>
#include <vector>

#include "troika/base/config.h"
#include "troika/data/dataset.h"
#include "troika/nn/zoo.h"
#include "troika/train/options/options.h"

namespace troika::cli {

// Reads CONFIG, unless `file` is empty, and then the overriding arguments `--section.name=value`.
void read_configuration(config::Table& table, const std::string& file,
                        const std::vector<std::string>& arguments);

// Whether CONFIG has the form of a checkpoint (see kCheckpointHelp) and not of a TOML file.
bool names_checkpoint(const std::string& config);

// Reads the options that the checkpoint was trained with, and then the overriding arguments. Sets
// trainer.ckpt_path to the checkpoint. `table` must be the table of `options`.
void read_checkpoint_configuration(config::Table& table, train::TrainOptions& options,
                                   const std::string& checkpoint,
                                   const std::vector<std::string>& arguments);

// Returns options.model with the sizes of the data set's samples and, with options.weights.sizes,
// of the weights. Throws Error(usage) if the model cannot take them.
nn::ModelOptions fit_model(const train::TrainOptions& options, const data::Dataset& dataset);

}  // namespace troika::cli
