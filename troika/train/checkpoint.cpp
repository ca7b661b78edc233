#include "troika/train/checkpoint.h"

#include <algorithm>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/nn/state.h"
#include "troika/train/checkpoint_index.h"
#include "troika/train/options.h"

namespace troika::train {

namespace {

constexpr const char* kOptionsKey = "troika.options";

}  // namespace

NamedTensors model_state(const torch::nn::Module& module, const NamedTensors& masters) {
  NamedTensors state;
  for (auto& item : nn::named_state(module)) {
    state.emplace_back(std::move(item.name), std::move(item.tensor));
  }
  for (const auto& [master, tensor] : masters) {
    const auto found = std::find_if(state.begin(), state.end(),
                                    [&](const auto& item) { return item.first == master; });
    TROIKA_CHECK(found != state.end(), master + " is not a tensor of the module");
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

TrainOptions read_checkpoint_options(const std::filesystem::path& file) {
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

void load_checkpoint(const std::filesystem::path& file, torch::nn::Module& module) {
  check_if_indexed(file);
  load_into(model_state(module), load_safetensors(file), file.string());
}

}  // namespace troika::train
