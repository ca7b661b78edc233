#include "troika/cli/configuration.h"

#include <fmt/format.h>

#include <filesystem>

#include "troika/base/config.h"
#include "troika/base/error.h"
#include "troika/checkpoint/checkpoint.h"
#include "troika/train/options/checkpoint_options.h"
#include "troika/train/options/weight_sizes.h"

namespace troika::cli {

namespace {

void set_arguments(config::Table& table, const std::vector<std::string>& arguments) {
  for (const auto& argument : arguments) table.set_argument(argument);
}

// Returns the config.toml of the run to which a checkpoint's handle belongs; empty if there is
// none.
std::filesystem::path config_of_run(std::filesystem::path handle) {
  std::error_code none;
  if (!handle.has_filename()) handle = handle.parent_path();  // drops the slash of `runs/NAME/`
  for (; !handle.empty() && handle != handle.root_path(); handle = handle.parent_path()) {
    auto config = handle / "config.toml";
    const bool is_run = std::filesystem::exists(handle / "checkpoints", none);
    if (is_run && std::filesystem::exists(config, none)) return config;
  }
  return {};
}

// Throws if `file` is a run's folder or a checkpoint; the error names the run's CONFIG.
void require_file(const std::filesystem::path& file) {
  std::error_code none;
  const bool is_folder = std::filesystem::is_directory(file, none);
  if (std::filesystem::is_regular_file(file, none) && file.extension() != ".safetensors") return;
  const auto config = config_of_run(file);
  if (!is_folder && config.empty()) return;  // load() reports the error
  throw Error(
      "config", ErrorKind::usage,
      {.what = is_folder ? "CONFIG is a folder" : "CONFIG is a checkpoint",
       .got = file.string(),
       .expected = "a file in TOML",
       .hint = config.empty()
                   ? ""
                   : fmt::format("`troika train {} --trainer.ckpt_path=last` resumes the run",
                                 config.string())});
}

struct SampleWords {
  nn::SampleKind kind;
  const char* samples;
  const char* models;  // that take them
};

// `input` and `target` are the shapes of one sample.
SampleWords words_of(const std::vector<int64_t>& input, const std::vector<int64_t>& target) {
  if (input.size() == 3 && target.empty()) {
    return {nn::SampleKind::images, "images", "a model of images"};
  }
  if (input.size() == 3) return {nn::SampleKind::masks, "images with masks", "unet"};
  if (input.size() == 2 && target.size() == 1)
    return {nn::SampleKind::videos, "videos with captions", "s2vt"};
  return {nn::SampleKind::text, "text", "gpt or llama"};
}

// Returns the model, whose sizes are those of weights, for texts of the data set.
nn::ModelOptions with_room_for_text(nn::ModelOptions model, const data::Dataset& dataset) {
  const int64_t words = dataset.num_classes(), length = dataset.input_shape().at(0);
  // The table of a gpt's positions has a row for each place.
  const bool has_positions = nn::model_family(model.name) == "gpt";
  if (model.vocab_size < words || (has_positions && model.context < length)) {
    throw Error("train", ErrorKind::usage,
                {.what = "the data do not fit the model of model.weights",
                 .got = fmt::format("{} words, samples of {}", words, length),
                 .expected = fmt::format("at most {} words, samples of at most {}",
                                         model.vocab_size, model.context)});
  }
  if (!has_positions) model.context = length;
  return model;
}

}  // namespace

void read_configuration(config::Table& table, const std::string& file,
                        const std::vector<std::string>& arguments) {
  // Also applied before CONFIG is read: in `--name value` without a section, the value looks like
  // CONFIG, and this reports the option instead.
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

nn::ModelOptions fit_model(const train::TrainOptions& options, const data::Dataset& dataset) {
  auto model = options.weights.sizes ? train::with_sizes_of_weights(options) : options.model;
  const auto shape = dataset.input_shape(), target = dataset.target_shape();
  const SampleWords samples = words_of(shape, target);
  if (!model.name.empty() && nn::sample_kind(model.name) != samples.kind) {
    throw Error("train", ErrorKind::usage,
                {.what = "model.name and data.name do not go together",
                 .got = fmt::format("{} for {}", model.name, samples.samples),
                 .expected = samples.models});
  }
  switch (samples.kind) {
    case nn::SampleKind::images:
    case nn::SampleKind::masks:
      model.num_classes = dataset.num_classes();
      model.in_channels = shape.at(0);
      model.image_size = shape.at(1);
      break;
    case nn::SampleKind::text:
      if (options.weights.sizes) {
        model = with_room_for_text(model, dataset);
      } else {
        model.vocab_size = dataset.num_classes();
        model.context = shape.at(0);
      }
      break;
    case nn::SampleKind::videos:
      model.frames = shape.at(0);
      model.feature_width = shape.at(1);
      model.vocab_size = dataset.num_classes();
      model.context = target.at(0);
      break;
  }
  return model;
}

}  // namespace troika::cli
