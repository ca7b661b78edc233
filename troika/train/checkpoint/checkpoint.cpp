#include "troika/train/checkpoint/checkpoint.h"

#include <charconv>
#include <unordered_map>
#include <utility>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/nn/state.h"
#include "troika/train/checkpoint/index.h"
#include "troika/train/checkpoint/reader.h"
#include "troika/train/checkpoint/resume.h"
#include "troika/train/options.h"

namespace troika::train {

namespace {

constexpr const char* kOptionsKey = "troika.options";

// Sizes that the model takes from its data set, so that they are no options.
constexpr std::pair<const char*, int64_t nn::ModelOptions::*> kSizes[] = {
    {"troika.num_classes", &nn::ModelOptions::num_classes},
    {"troika.in_channels", &nn::ModelOptions::in_channels},
    {"troika.image_size", &nn::ModelOptions::image_size},
    {"troika.vocab_size", &nn::ModelOptions::vocab_size},
    {"troika.context", &nn::ModelOptions::context}};

std::filesystem::path find_on_disk(const std::filesystem::path& path) {
  const auto checkpoints = run_folder({}) / "checkpoints";
  auto found = find_checkpoint(checkpoints, path.string());
  if (!found.empty()) return found;
  throw Error("train", ErrorKind::usage,
              {.what = "there is no " + path.string() + " checkpoint",
               .got = "none in " + checkpoints.string(),
               .expected = "those of a run that was trained",
               .hint = "give the folder of the run, as runs/NAME"});
}

}  // namespace

void keep_weights(RankState& state) {
  state.rest.clear();
}

NamedTensors model_state(const torch::nn::Module& module, const NamedTensors& others) {
  NamedTensors state = nn::named_state(module);
  std::unordered_map<std::string, size_t> places;
  for (const auto& [name, tensor] : state) places.emplace(name, places.size());
  for (const auto& other : others) {
    const auto found = places.find(other.first);
    TROIKA_CHECK(found != places.end(), other.first + " is not a tensor of the module");
    state[found->second] = other;
  }
  return state;
}

FileDigest save_weights(const std::filesystem::path& file, const NamedTensors& model,
                        const TrainOptions& options, const CheckpointInfo& info, Publish publish) {
  TrainOptions copy = options;
  Metadata metadata{{"format", "pt"},
                    {"epoch", std::to_string(info.epoch)},
                    {"step", std::to_string(info.step)},
                    {kOptionsKey, make_table(copy).to_toml()}};
  if (!copy.model.name.empty()) {
    for (const auto& [key, size] : kSizes) metadata[key] = std::to_string(copy.model.*size);
  }
  return save_safetensors(file, model, metadata, publish);
}

std::filesystem::path find_run(const std::filesystem::path& path) {
  const auto refuse = [&](const std::string& got) {
    throw Error("train", ErrorKind::usage,
                {.what = path.string() + " is not the folder of a run",
                 .got = got,
                 .expected = "one that troika train wrote, e.g. runs/run"});
  };
  std::error_code none;
  if (std::filesystem::exists(path / "config.toml", none)) return path;
  const bool is_name = path.filename() == "last" || path.filename() == "best";
  if (!is_name && !std::filesystem::exists(path, none)) refuse("no such folder");
  auto part = find_on_disk(path);
  while (part.has_relative_path() && part.filename() != "checkpoints") part = part.parent_path();
  if (!part.has_relative_path()) refuse("a checkpoint that lies in none");
  return part.parent_path();
}

NamedTensors load_weights(const std::filesystem::path& path) {
  const auto found = find_on_disk(path);
  return std::filesystem::is_directory(found) ? CheckpointReader(found, 0).read_all(kModelPrefix)
                                              : load_safetensors(found);
}

TrainOptions read_checkpoint_options(const std::filesystem::path& path) {
  const auto found = find_on_disk(path);
  const auto file = std::filesystem::is_directory(found) ? found / kWeightsFile : found;
  const Metadata metadata = read_safetensors_metadata(file);
  const auto text = metadata.find(kOptionsKey);
  if (text == metadata.end()) {
    throw Error("train", ErrorKind::usage,
                {.what = file.string() + " does not say which model it is of",
                 .got = "no " + std::string(kOptionsKey) + " in its metadata",
                 .expected = "a checkpoint that troika train wrote"});
  }
  TrainOptions options;
  make_table(options).parse(text->second, file.string());
  for (const auto& [key, size] : kSizes) {
    const auto found = metadata.find(key);
    if (found == metadata.end()) continue;
    const std::string& number = found->second;
    const auto end = number.data() + number.size();
    if (std::from_chars(number.data(), end, options.model.*size).ptr != end) {
      throw Error("train", ErrorKind::usage,
                  {.what = file.string() + ": bad " + key, .got = number, .expected = "a number"});
    }
  }
  return options;
}

std::shared_ptr<nn::Model> load_from_checkpoint(const std::filesystem::path& path) {
  auto model = nn::make_model(read_checkpoint_options(path).model);
  load_checkpoint(path, *model);
  return model;
}

void load_checkpoint(const std::filesystem::path& path, torch::nn::Module& module) {
  load_into(model_state(module), load_weights(path), path.string());
}

}  // namespace troika::train
