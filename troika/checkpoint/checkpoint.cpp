#include "troika/checkpoint/checkpoint.h"

#include <unordered_map>
#include <utility>

#include "troika/base/error.h"
#include "troika/checkpoint/index.h"
#include "troika/checkpoint/reader.h"
#include "troika/checkpoint/resume.h"
#include "troika/checkpoint/weight_files.h"
#include "troika/compat/torch.h"
#include "troika/nn/state.h"

namespace troika::checkpoint {

namespace {

std::filesystem::path find_on_disk(const std::filesystem::path& path) {
  const auto checkpoints = std::filesystem::path("runs/run/checkpoints");
  auto found = find_checkpoint(checkpoints, in_model_folder(path).string());
  if (!found.empty()) return found;
  throw Error("checkpoint", ErrorKind::usage,
              {.what = "there is no " + path.string() + " checkpoint",
               .got = "none in " + checkpoints.string(),
               .expected = "a run that was trained",
               .hint = "give the folder of the run, for example runs/NAME"});
}

}  // namespace

void keep_weights(RankState& state) {
  state.rest.clear();
}

NamedTensors model_state(const torch::nn::Module& module, const NamedTensors& others) {
  return replaced(nn::named_state(module), others);
}

NamedTensors replaced(NamedTensors state, const NamedTensors& others) {
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
                        const Metadata& description, const CheckpointInfo& info, Publish publish) {
  Metadata metadata{
      {"format", "pt"}, {"epoch", std::to_string(info.epoch)}, {"step", std::to_string(info.step)}};
  metadata.insert(description.begin(), description.end());
  return save_safetensors(file, model, metadata, publish);
}

std::filesystem::path find_run(const std::filesystem::path& path) {
  const auto refuse = [&](const std::string& got) {
    throw Error("checkpoint", ErrorKind::usage,
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
                                              : load_weight_files(found);
}

Metadata read_checkpoint_metadata(const std::filesystem::path& path) {
  const auto found = find_on_disk(path);
  return read_safetensors_metadata(std::filesystem::is_directory(found) ? found / kWeightsFile
                                                                        : found);
}

void load_checkpoint(const std::filesystem::path& path, torch::nn::Module& module) {
  load_into(model_state(module), load_weights(path), path.string());
}

}  // namespace troika::checkpoint
