#include "troika/cli/configuration.h"

#include <fmt/format.h>

#include "troika/base/error.h"

namespace troika::cli {

void read_configuration(config::Table& table, const std::string& file,
                        const std::vector<std::string>& arguments) {
  const auto override_by_arguments = [&] {
    for (const auto& argument : arguments) table.set_argument(argument);
  };
  // Before CONFIG too: of `--name value`, without a section, the value would be looked for as
  // CONFIG.
  override_by_arguments();
  if (file.empty()) return;
  table.load(file);
  override_by_arguments();
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
