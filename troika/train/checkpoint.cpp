#include "troika/train/checkpoint.h"

#include <fmt/format.h>
#include <fnmatch.h>
#include <unistd.h>

#include <algorithm>

#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/compat/torch.h"
#include "troika/nn/state.h"
#include "troika/train/options.h"

namespace troika::train {

namespace {

constexpr const char* kOptionsKey = "troika.options";

NamedTensors state_of(const torch::nn::Module& module) {
  NamedTensors result;
  for (auto& item : nn::named_state(module)) {
    result.emplace_back(std::move(item.name), std::move(item.tensor));
  }
  return result;
}

// rename() replaces a link in one step; symlink() cannot.
void move_link(const std::filesystem::path& link, const std::filesystem::path& target) {
  const std::filesystem::path temporary = fmt::format("{}.tmp-{}", link.string(), ::getpid());
  std::filesystem::remove(temporary);
  std::filesystem::create_symlink(target, temporary);
  std::filesystem::rename(temporary, link);
  sync_path(link.parent_path());
}

// Whether save_checkpoint() may have written a link's target: not so a file in another folder or of
// another name, to which a user moved the link.
bool is_ours(const std::filesystem::path& target) {
  return ::fnmatch("epoch=*-step=*.safetensors", target.c_str(), FNM_PATHNAME) == 0;
}

}  // namespace

std::filesystem::path save_checkpoint(const std::filesystem::path& folder,
                                      const torch::nn::Module& module, const TrainOptions& options,
                                      const CheckpointInfo& info) {
  TrainOptions copy = options;
  const std::string name = fmt::format("epoch={}-step={}.safetensors", info.epoch, info.step);
  NamedTensors state = state_of(module);
  for (const auto& [master, tensor] : info.masters) {
    const auto found = std::find_if(state.begin(), state.end(),
                                    [&](const auto& item) { return item.first == master; });
    TROIKA_CHECK(found != state.end(), master + " is not a tensor of the module");
    found->second = tensor;
  }
  save_safetensors(folder / name, state,
                   {{"format", "pt"},
                    {"epoch", std::to_string(info.epoch)},
                    {"step", std::to_string(info.step)},
                    {kOptionsKey, make_table(copy).to_toml()}});
  const auto link = folder / "last.safetensors";
  std::error_code none;
  const auto previous = std::filesystem::read_symlink(link, none);
  move_link(link, name);
  if (!none && previous != name && is_ours(previous)) std::filesystem::remove(folder / previous);
  return folder / name;
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
  load_into(state_of(module), load_safetensors(file), file.string());
}

}  // namespace troika::train
