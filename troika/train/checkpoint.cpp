#include "troika/train/checkpoint.h"

#include <algorithm>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/nn/state.h"
#include "troika/train/checkpoint_reader.h"
#include "troika/train/options.h"

namespace troika::train {

namespace {

constexpr const char* kOptionsKey = "troika.options";

}  // namespace

NamedTensors model_state(const torch::nn::Module& module, const NamedTensors& others) {
  NamedTensors state;
  for (auto& item : nn::named_state(module)) {
    state.emplace_back(std::move(item.name), std::move(item.tensor));
  }
  for (const auto& [other, tensor] : others) {
    const auto found = std::find_if(state.begin(), state.end(),
                                    [&](const auto& item) { return item.first == other; });
    TROIKA_CHECK(found != state.end(), other + " is not a tensor of the module");
    found->second = tensor;
  }
  return state;
}

FileDigest save_weights(const std::filesystem::path& file, const NamedTensors& model,
                        const TrainOptions& options, const CheckpointInfo& info) {
  TrainOptions copy = options;
  return save_safetensors(file, model,
                          {{"format", "pt"},
                           {"epoch", std::to_string(info.epoch)},
                           {"step", std::to_string(info.step)},
                           {kOptionsKey, make_table(copy).to_toml()}});
}

NamedTensors load_weights(const std::filesystem::path& path) {
  std::error_code none;
  auto folder = std::filesystem::canonical(path, none);
  if (!none && folder.filename() == kWeightsFile) folder = folder.parent_path();
  if (!none && std::filesystem::exists(folder / kIndexFile)) {
    return CheckpointReader(folder, 0).read_all(kModelPrefix);
  }
  return load_safetensors(path);
}

TrainOptions read_checkpoint_options(const std::filesystem::path& path) {
  const auto file = std::filesystem::is_directory(path) ? path / kWeightsFile : path;
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
  return options;
}

void load_checkpoint(const std::filesystem::path& path, torch::nn::Module& module) {
  load_into(model_state(module), load_weights(path), path.string());
}

}  // namespace troika::train
