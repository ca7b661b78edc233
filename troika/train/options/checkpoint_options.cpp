#include "troika/train/options/checkpoint_options.h"

#include <charconv>

#include "troika/base/config.h"
#include "troika/base/error.h"
#include "troika/checkpoint/checkpoint.h"
#include "troika/nn/zoo.h"

namespace troika::train {

namespace {

// Model sizes that come from the data set and are therefore not options.
constexpr std::pair<const char*, int64_t nn::ModelOptions::*> kSizes[] = {
    {"troika.num_classes", &nn::ModelOptions::num_classes},
    {"troika.in_channels", &nn::ModelOptions::in_channels},
    {"troika.image_size", &nn::ModelOptions::image_size},
    {"troika.feature_width", &nn::ModelOptions::feature_width},
    {"troika.frames", &nn::ModelOptions::frames},
    {"troika.vocab_size", &nn::ModelOptions::vocab_size},
    {"troika.context", &nn::ModelOptions::context}};

}  // namespace

checkpoint::Metadata checkpoint_metadata(const TrainOptions& options) {
  TrainOptions copy = options;
  checkpoint::Metadata metadata{{kOptionsKey, make_table(copy).to_toml()}};
  if (copy.model.name.empty()) return metadata;
  for (const auto& [key, size] : kSizes) metadata[key] = std::to_string(copy.model.*size);
  return metadata;
}

TrainOptions read_checkpoint_options(const std::filesystem::path& path) {
  const auto metadata = checkpoint::read_checkpoint_metadata(path);
  const auto text = metadata.find(kOptionsKey);
  if (text == metadata.end()) {
    throw Error("train", ErrorKind::usage,
                {.what = path.string() + " does not say which model it is of",
                 .got = "no " + std::string(kOptionsKey) + " in its metadata",
                 .expected = "a checkpoint that troika train wrote"});
  }
  TrainOptions options;
  make_table(options).parse(text->second, path.string());
  for (const auto& [key, size] : kSizes) {
    const auto found = metadata.find(key);
    if (found == metadata.end()) continue;
    const std::string& number = found->second;
    const auto end = number.data() + number.size();
    if (std::from_chars(number.data(), end, options.model.*size).ptr != end) {
      throw Error("train", ErrorKind::usage,
                  {.what = path.string() + ": bad " + key, .got = number, .expected = "a number"});
    }
  }
  return options;
}

std::shared_ptr<nn::Model> load_from_checkpoint(const std::filesystem::path& path) {
  auto model = nn::make_model(read_checkpoint_options(path).model);
  checkpoint::load_checkpoint(path, *model);
  return model;
}

}  // namespace troika::train
