#include "troika/train/resume.h"

#include <fmt/format.h>
#include <fnmatch.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <set>
#include <string_view>

#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/base/random.h"
#include "troika/compat/torch.h"
#include "troika/train/checkpoint_index.h"
#include "troika/train/options.h"

namespace troika::train {

namespace {

constexpr std::string_view kModel = "model.";
constexpr const char* kUnfinished = ".unfinished-";

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
  if (group.size() == 1) return {};
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

// What the standard library's functions on files throw is said as the others say it.
template <typename Body>
auto on_disk(const std::string& what, const Body& body) {
  try {
    return body();
  } catch (const std::filesystem::filesystem_error& problem) {
    throw Error("train", ErrorKind::failure, {.what = "cannot " + what, .got = problem.what()});
  }
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
             const RankState& state, const CheckpointIndex& index) {
  for (int rank = 0; rank < group.size(); ++rank) {
    if (std::filesystem::exists(unfinished / rank_file(rank))) continue;
    throw Error("train", ErrorKind::usage,
                {.what = folder.string() + " is not one folder for all ranks",
                 .got = fmt::format("nothing of rank {}", rank),
                 .expected = "run.folder on a file system that all machines share"});
  }
  write_index(unfinished, index, state.model, state.rest);
  sync_path(unfinished);
  std::filesystem::rename(unfinished, folder / name);
  sync_path(folder);
  move_link(folder / "last", name);
  move_link(folder / "last.safetensors", std::filesystem::path("last") / kWeightsFile);
}

std::filesystem::path save(const comm::Group& group, const std::filesystem::path& folder,
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
  const std::string own = rank_file(group.rank());
  FileDigests written;
  if (is_main) {
    written[kWeightsFile] = save_weights(unfinished / kWeightsFile, state.model, options, info);
    written[own] = save_safetensors(unfinished / own, state.rest);
  } else {
    make_folder(unfinished);
    written[own] = save_safetensors(unfinished / own, share);
  }
  CheckpointIndex index{.ranks = group.size(), .info = info, .files = {}};
  for (const auto& text : group.all_gather_text(to_text(written), "checkpoint")) {
    index.files.merge(digests_from_text(text));
  }
  if (is_main) publish(group, folder, unfinished, name, state, index);
  group.barrier({.label = "checkpoint"});
  return folder / name;
}

}  // namespace

std::filesystem::path save_checkpoint(const comm::Group& group, const std::filesystem::path& folder,
                                      const RankState& state, const TrainOptions& options,
                                      const CheckpointInfo& info) {
  return on_disk("save a checkpoint in " + folder.string(),
                 [&] { return save(group, folder, state, options, info); });
}

int checkpoint_ranks(const std::filesystem::path& checkpoint) {
  return read_index(checkpoint).ranks;
}

RankState load_rank_state(const std::filesystem::path& checkpoint, int rank) {
  const auto index = read_index(checkpoint);
  const auto load = [&](const std::string& name) {
    check_file(checkpoint, index, name);
    return load_safetensors(checkpoint / name);
  };
  RankState result{.model = load(kWeightsFile), .rest = load(rank_file(0))};
  if (rank == 0 || rank >= index.ranks) return result;
  std::map<std::string, at::Tensor> own;
  for (auto& [name, tensor] : load(rank_file(rank))) own.emplace(name, tensor);
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
    const auto link = folder / ckpt_path;
    // A copy of the folder may have made the link a folder.
    if (!std::filesystem::is_symlink(link, none)) {
      return std::filesystem::exists(link, none) ? link : std::filesystem::path();
    }
    const auto target = std::filesystem::read_symlink(link);
    return target.is_absolute() ? target : folder / target;
  }
  const std::filesystem::path path(ckpt_path);
  if (!std::filesystem::exists(path / kIndexFile)) {
    throw Error("train", ErrorKind::usage,
                {.what = "cannot resume from " + path.string(),
                 .got = std::string("no ") + kIndexFile + " in it",
                 .expected = "the folder of a checkpoint, last, or best"});
  }
  return path;
}

void remove_checkpoint(const std::filesystem::path& checkpoint) {
  on_disk("remove checkpoint " + checkpoint.string(), [&] {
    if (!std::filesystem::exists(checkpoint)) return;
    const auto unfinished =
        checkpoint.parent_path() / (kUnfinished + checkpoint.filename().string());
    std::filesystem::remove_all(unfinished);
    std::filesystem::rename(checkpoint, unfinished);
    std::filesystem::remove_all(unfinished);
  });
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
  on_disk("remove unfinished checkpoints in " + folder.string(), [&] {
    if (!std::filesystem::exists(folder)) return;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().filename().string().starts_with(kUnfinished)) {
        std::filesystem::remove_all(entry.path());
      }
    }
  });
}

std::filesystem::path linked_checkpoint(const std::filesystem::path& folder,
                                        const std::string& name) {
  std::error_code none;
  const auto target = std::filesystem::read_symlink(folder / name, none);
  const bool is_ours = ::fnmatch("epoch=*-step=*", target.c_str(), FNM_PATHNAME) == 0;
  return !none && is_ours ? folder / target : std::filesystem::path();
}

}  // namespace troika::train
