#include "troika/cli/configuration.h"

#include <fmt/format.h>

#include <filesystem>

#include "troika/base/error.h"
#include "troika/train/checkpoint/checkpoint.h"

namespace troika::cli {

namespace {

void set_arguments(config::Table& table, const std::vector<std::string>& arguments) {
  for (const auto& argument : arguments) table.set_argument(argument);
}

// A run's folder is no CONFIG, but has one.
void require_file(const std::filesystem::path& file) {
  std::error_code none;
  if (!std::filesystem::is_directory(file, none)) return;
  const auto config = file / "config.toml";
  throw Error("config", ErrorKind::usage,
              {.what = "CONFIG is a folder",
               .got = file.string(),
               .expected = "a file in TOML",
               .hint = std::filesystem::exists(config, none)
                           ? config.string() + " is the run's; with --trainer.ckpt_path=last it "
                                               "goes on"
                           : ""});
}

}  // namespace

void read_configuration(config::Table& table, const std::string& file,
                        const std::vector<std::string>& arguments) {
  // Before CONFIG too: of `--name value`, without a section, the value would be looked for as
  // CONFIG.
  set_arguments(table, arguments);
  if (file.empty()) return;
  require_file(file);
  table.load(file);
  set_arguments(table, arguments);
}

bool names_checkpoint(const std::string& config) {
  const std::filesystem::path path(config);
  std::error_code none;
  return std::filesystem::is_directory(path, none) || path.filename() == "last" ||
         path.filename() == "best" || path.extension() == ".safetensors";
}

void read_checkpoint_configuration(config::Table& table, train::TrainOptions& options,
                                   const std::string& checkpoint,
                                   const std::vector<std::string>& arguments) {
  set_arguments(table, arguments);
  options = train::read_checkpoint_options(checkpoint);
  options.trainer.ckpt_path = checkpoint;
  set_arguments(table, arguments);
}

nn::ModelOptions fit_model(nn::ModelOptions model, const data::Dataset& dataset) {
  const auto shape = dataset.input_shape();
  const bool images = shape.size() == 3;
  if (!model.name.empty() && images == (model.name == "gpt")) {
    throw Error("train", ErrorKind::usage,
                {.what = "model.name and data.name do not go together",
                 .got = fmt::format("{} for {}", model.name, images ? "images" : "text"),
                 .expected = images ? "a model of images" : "gpt"});
  }
  if (images) {
    model.num_classes = dataset.num_classes();
    model.in_channels = shape.at(0);
    model.image_size = shape.at(1);
  } else {
    model.vocab_size = dataset.num_classes();
    model.context = shape.at(0);
  }
  return model;
}

}  // namespace troika::cli
