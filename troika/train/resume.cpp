#include "troika/train/resume.h"

#include <fmt/format.h>
#include <fnmatch.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/base/random.h"
#include "troika/compat/torch.h"
#include "troika/train/options.h"

namespace troika::train {

namespace {

constexpr std::string_view kModel = "model.";
constexpr const char* kIndex = "index.json";
constexpr const char* kWeights = "model.safetensors";
constexpr const char* kUnfinished = ".unfinished-";

std::filesystem::path rank_file(int rank) {
  return rank == 0 ? "training.safetensors" : fmt::format("rank-{}.safetensors", rank);
}

NamedTensors all_of(const RankState& state) {
  NamedTensors all;
  for (const auto& [name, tensor] : state.model) {
    all.emplace_back(std::string(kModel) + name, tensor);
  }
  all.insert(all.end(), state.rest.begin(), state.rest.end());
  return all;
}

uint64_t fingerprint(std::string_view bytes) {
  uint64_t hash = bytes.size();
  for (size_t i = 0; i < bytes.size(); i += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, std::min(sizeof word, bytes.size() - i));
    hash = mix(hash, word);
  }
  return hash;
}

// Of the name and the bits.
uint64_t fingerprint(const std::string& name, const at::Tensor& tensor) {
  const auto host = tensor.detach().to(at::kCPU).contiguous();
  const std::string kind =
      fmt::format("{} {} {}", name, c10::toString(host.scalar_type()), host.numel());
  return mix(fingerprint(kind),
             fingerprint({static_cast<const char*>(host.data_ptr()), host.nbytes()}));
}

// What differs from rank 0's.
NamedTensors own_share(const comm::Group& group, const NamedTensors& all) {
  std::vector<uint64_t> mine;
  for (const auto& [name, tensor] : all) mine.push_back(fingerprint(name, tensor));
  const std::string text(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof mine[0]);
  const std::string of_main = group.broadcast_text(text, 0, "checkpoint");
  std::vector<uint64_t> shared(of_main.size() / sizeof(uint64_t));
  std::memcpy(shared.data(), of_main.data(), of_main.size());
  const std::set<uint64_t> known(shared.begin(), shared.end());
  NamedTensors result;
  for (size_t i = 0; i < all.size(); ++i) {
    if (!known.contains(mine[i])) result.push_back(all[i]);
  }
  return result;
}

void write_index(const std::filesystem::path& folder, const RankState& state, int ranks,
                 const CheckpointInfo& info) {
  nlohmann::ordered_json index{
      {"format", 1}, {"ranks", ranks}, {"epoch", info.epoch}, {"step", info.step}};
  auto& tensors = index["tensors"] = nlohmann::ordered_json::object();
  const auto add = [&](const std::string& name, const at::Tensor& tensor, const char* file,
                       const std::string& key) {
    const auto shape = tensor.sizes().vec();
    // A slice is where in the global tensor the file's begins, and how large it is.
    tensors[name] = {{"dtype", c10::toString(tensor.scalar_type())},
                     {"shape", shape},
                     {"slices",
                      {{{"file", file},
                        {"name", key},
                        {"start", std::vector<int64_t>(shape.size(), 0)},
                        {"shape", shape}}}}};
  };
  for (const auto& [name, tensor] : state.model) {
    add(std::string(kModel) + name, tensor, kWeights, name);
  }
  const std::string training = rank_file(0);
  for (const auto& [name, tensor] : state.rest) add(name, tensor, training.c_str(), name);
  write_file_atomically(folder / kIndex, index.dump(1) + "\n");
}

std::filesystem::path free_name(const std::filesystem::path& folder, const CheckpointInfo& info) {
  const auto plain = fmt::format("epoch={}-step={}", info.epoch, info.step);
  std::filesystem::path name = plain;
  for (int i = 1; std::filesystem::exists(folder / name); ++i) {
    name = fmt::format("{}-v{}", plain, i);
  }
  return name;
}

void publish(const comm::Group& group, const std::filesystem::path& folder,
             const std::filesystem::path& unfinished, const std::filesystem::path& name,
             const RankState& state, const CheckpointInfo& info) {
  for (int rank = 0; rank < group.size(); ++rank) {
    if (std::filesystem::exists(unfinished / rank_file(rank))) continue;
    throw Error("train", ErrorKind::usage,
                {.what = folder.string() + " is not one folder for all ranks",
                 .got = fmt::format("nothing of rank {}", rank),
                 .expected = "run.folder on a file system that all machines share"});
  }
  write_index(unfinished, state, group.size(), info);
  sync_path(unfinished);
  std::filesystem::rename(unfinished, folder / name);
  sync_path(folder);
  move_link(folder / "last", name);
  move_link(folder / "last.safetensors", std::filesystem::path("last") / kWeights);
}

}  // namespace

std::filesystem::path save_checkpoint(const comm::Group& group, const std::filesystem::path& folder,
                                      const RankState& state, const TrainOptions& options,
                                      const CheckpointInfo& info) {
  const bool is_main = group.rank() == 0;
  const std::filesystem::path name =
      group.broadcast_text(is_main ? free_name(folder, info).string() : "", 0, "checkpoint");
  const auto unfinished = folder / (kUnfinished + name.string());
  if (is_main) {
    std::filesystem::remove_all(unfinished);
    make_folder(unfinished);
  }
  group.barrier({.label = "checkpoint"});
  const NamedTensors share = own_share(group, all_of(state));
  if (is_main) {
    save_weights(unfinished / kWeights, state.model, options, info);
    save_safetensors(unfinished / rank_file(0), state.rest);
  } else {
    make_folder(unfinished);
    save_safetensors(unfinished / rank_file(group.rank()), share);
  }
  group.barrier({.label = "checkpoint"});
  if (is_main) publish(group, folder, unfinished, name, state, info);
  group.barrier({.label = "checkpoint"});
  return folder / name;
}

int checkpoint_ranks(const std::filesystem::path& checkpoint) {
  try {
    const auto index = nlohmann::json::parse(read_file(checkpoint / kIndex));
    if (index.at("format") == 1) return index.at("ranks").get<int>();
  } catch (const nlohmann::json::exception&) {
  }
  throw Error("train", ErrorKind::usage,
              {.what = "cannot resume from " + checkpoint.string(),
               .got = std::string("a damaged or newer ") + kIndex,
               .expected = "a checkpoint that this version of troika train wrote"});
}

RankState load_rank_state(const std::filesystem::path& checkpoint, int rank) {
  RankState result{.model = load_safetensors(checkpoint / kWeights),
                   .rest = load_safetensors(checkpoint / rank_file(0))};
  if (rank == 0 || rank >= checkpoint_ranks(checkpoint)) return result;
  std::map<std::string, at::Tensor> own;
  for (auto& [name, tensor] : load_safetensors(checkpoint / rank_file(rank))) {
    own.emplace(name, tensor);
  }
  const auto replace = [&](std::string_view prefix, NamedTensors& list) {
    for (auto& [name, tensor] : list) {
      const auto found = own.extract(std::string(prefix) + name);
      if (!found.empty()) tensor = found.mapped();
    }
  };
  replace(kModel, result.model);
  replace("", result.rest);
  for (auto& [name, tensor] : own) result.rest.emplace_back(name, tensor);
  return result;
}

std::filesystem::path find_checkpoint(const std::filesystem::path& folder,
                                      const std::string& ckpt_path) {
  if (ckpt_path.empty()) return {};
  std::error_code none;
  if (ckpt_path == "last" || ckpt_path == "best") {
    const auto target = std::filesystem::read_symlink(folder / ckpt_path, none);
    if (none) return {};
    return target.is_absolute() ? target : folder / target;
  }
  const std::filesystem::path path(ckpt_path);
  if (!std::filesystem::exists(path / kIndex)) {
    throw Error("train", ErrorKind::usage,
                {.what = "cannot resume from " + path.string(),
                 .got = std::string("no ") + kIndex + " in it",
                 .expected = "the folder of a checkpoint, last, or best"});
  }
  return path;
}

void remove_checkpoint(const std::filesystem::path& checkpoint) {
  std::error_code none;
  if (!std::filesystem::exists(checkpoint, none)) return;
  const auto unfinished = checkpoint.parent_path() / (kUnfinished + checkpoint.filename().string());
  std::filesystem::remove_all(unfinished);
  std::filesystem::rename(checkpoint, unfinished);
  std::filesystem::remove_all(unfinished);
}

// rename() replaces a link in one step; symlink() cannot.
void move_link(const std::filesystem::path& link, const std::filesystem::path& target) {
  const std::filesystem::path temporary = fmt::format("{}.tmp-{}", link.string(), ::getpid());
  std::filesystem::remove(temporary);
  std::filesystem::create_symlink(target, temporary);
  std::filesystem::rename(temporary, link);
  sync_path(link.parent_path());
}

void remove_unfinished(const std::filesystem::path& folder) {
  if (!std::filesystem::exists(folder)) return;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with(kUnfinished)) {
      std::filesystem::remove_all(entry.path());
    }
  }
}

std::filesystem::path linked_checkpoint(const std::filesystem::path& folder,
                                        const std::string& name) {
  std::error_code none;
  const auto target = std::filesystem::read_symlink(folder / name, none);
  const bool is_ours = ::fnmatch("epoch=*-step=*", target.c_str(), FNM_PATHNAME) == 0;
  return !none && is_ours ? folder / target : std::filesystem::path();
}

}  // namespace troika::train
