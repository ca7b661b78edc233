#include "troika/checkpoint/resume.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fnmatch.h>
#include <stdio.h>
#include <unistd.h>

#include <future>
#include <optional>
#include <set>
#include <string_view>

#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/checkpoint/index.h"
#include "troika/checkpoint/shard.h"

namespace troika::checkpoint {

namespace {

constexpr const char* kUnfinished = ".unfinished-";
constexpr const char* kFormer = ".former-";
// A link to the checkpoint that is being published.
constexpr const char* kPublishing = ".publishing";
// A link to the last checkpoint from before the current run began.
constexpr const char* kBefore = ".before";

// Turns exceptions of the standard library's file functions into Error.
template <typename Body>
auto on_disk(const std::string& what, const Body& body) {
  try {
    return body();
  } catch (const std::filesystem::filesystem_error& problem) {
    throw Error("checkpoint", ErrorKind::failure,
                {.what = "cannot " + what, .got = problem.what()});
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

bool is_checkpoint_name(const std::filesystem::path& name) {
  return ::fnmatch("epoch=*-step=*", name.c_str(), FNM_PATHNAME) == 0;
}

// Finds the checkpoint in `folder` of which `copy` is a copy, by its index; empty if there is none.
std::filesystem::path original_of(const std::filesystem::path& folder,
                                  const std::filesystem::path& copy) {
  const auto index = read_file(copy / kIndexFile);
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const auto name = entry.path().filename();
    if (is_checkpoint_name(name) && std::filesystem::exists(entry.path() / kIndexFile) &&
        read_file(entry.path() / kIndexFile) == index) {
      return name;
    }
  }
  return {};
}

// Turns `name` into a link again if a copy of the folder that followed links has made it a folder.
void link_again(const std::filesystem::path& folder, const std::string& name) {
  const auto copy = folder / name;
  if (std::filesystem::is_symlink(copy) || !std::filesystem::exists(copy / kIndexFile)) return;
  auto target = original_of(folder, copy);
  const bool has_original = !target.empty();
  if (!has_original) target = free_name(folder, read_index(copy).info);
  // If the process is killed from here on, the next start repairs `last` from this link.
  if (name == "last") move_link(folder / kPublishing, target);
  std::filesystem::rename(copy, folder / (has_original ? kUnfinished + name : target.string()));
  move_link(copy, target);
}

// Unlike symlink(), rename() replaces a link atomically. Does not sync the folder.
void set_link(const std::filesystem::path& link, const std::filesystem::path& target) {
  const std::filesystem::path temporary = fmt::format("{}.tmp-{}", link.string(), ::getpid());
  std::filesystem::remove(temporary);
  std::filesystem::create_symlink(target, temporary);
  std::filesystem::rename(temporary, link);
}

void link_last(const std::filesystem::path& folder, const std::filesystem::path& name) {
  set_link(folder / "last", name);
  set_link(folder / "last.safetensors", std::filesystem::path("last") / kWeightsFile);
  std::filesystem::remove(folder / kPublishing);
  sync_path(folder);
}

void finish_folder(const comm::Group& group, const std::filesystem::path& unfinished,
                   const CheckpointIndex& index) {
  for (int rank = 0; rank < group.size(); ++rank) {
    if (std::filesystem::exists(unfinished / rank_file(rank))) continue;
    throw Error("checkpoint", ErrorKind::usage,
                {.what = unfinished.parent_path().string() + " is not one folder for all ranks",
                 .got = fmt::format("nothing of rank {}", rank),
                 .expected = "run.folder on a file system that all machines share"});
  }
  write_index(unfinished, index);
  sync_path(unfinished);
}

FileDigest write_shard(const std::filesystem::path& unfinished, const ShardFile& file,
                       const Metadata& description, const CheckpointInfo& info) {
  NamedTensors tensors;
  for (const auto& part : file.parts) tensors.emplace_back(part.key, part.tensor);
  const auto path = unfinished / file.name;
  return file.name == kWeightsFile
             ? save_weights(path, tensors, description, info, Publish::with_folder)
             : save_safetensors(path, tensors, {}, Publish::with_folder);
}

// Writes the files in parallel, so one is hashed and copied while another waits for the disk.
// Returns this rank's entries of the index.
CheckpointIndex write_files(const std::filesystem::path& unfinished,
                            const std::vector<ShardFile>& files, const Metadata& description,
                            const CheckpointInfo& info) {
  std::vector<std::future<FileDigest>> digests;
  for (const ShardFile& file : files) {
    digests.push_back(std::async(std::launch::async,
                                 [&] { return write_shard(unfinished, file, description, info); }));
  }
  CheckpointIndex own;
  for (size_t i = 0; i < files.size(); ++i) add_written(own, files[i], digests[i].get());
  return own;
}

// Computes the checksums of each replica's chunks in a thread of its own.
std::future<std::vector<std::vector<uint32_t>>> checksums_of(
    const std::vector<ShardTensor>& replicas) {
  return std::async(replicas.empty() ? std::launch::deferred : std::launch::async, [&replicas] {
    std::vector<std::vector<uint32_t>> result;
    for (const auto& part : replicas) result.push_back(chunk_checksums(part.tensor));
    return result;
  });
}

// Writes each rank's shard. A tensor that several ranks hold is written by one rank, and meanwhile
// compared on the others by checksums. If any differ, removes the files, adds the differing places
// to `compared` for another attempt, and returns nothing.
std::optional<CheckpointIndex> write_shards(const comm::Group& group,
                                            const std::filesystem::path& unfinished,
                                            const RankState& state, const Metadata& description,
                                            const CheckpointInfo& info,
                                            std::set<PlaceHash>& compared) {
  const RankShard shard = shard_of(group, state, compared);
  auto checksums = checksums_of(shard.replicas);
  const auto own = write_files(unfinished, shard.files, description, info);
  CheckpointIndex index{.ranks = group.size(), .info = info, .files = {}, .tensors = {}};
  for (const auto& text : group.all_gather_text(to_text(own), "checkpoint")) {
    add_shard(index, text);
  }
  const auto differing = differing_places(group, index, shard.replicas, checksums.get());
  if (differing.empty()) return index;
  for (const ShardFile& file : shard.files) std::filesystem::remove(unfinished / file.name);
  compared.insert(differing.begin(), differing.end());
  return std::nullopt;
}

// Writes the shards of all ranks; rank 0 then writes the index of all shards.
void write_folder(const comm::Group& group, const std::filesystem::path& unfinished,
                  const RankState& state, const Metadata& description, const CheckpointInfo& info) {
  const bool is_main = group.rank() == 0;
  if (is_main) {
    std::filesystem::remove_all(unfinished);
    make_folder(unfinished);
  }
  group.barrier({.label = "checkpoint"});
  make_folder(unfinished);
  std::set<PlaceHash> compared;
  auto index = write_shards(group, unfinished, state, description, info, compared);
  if (!index) index = write_shards(group, unfinished, state, description, info, compared);
  if (!index) {
    throw Error("checkpoint", ErrorKind::failure,
                {.what = "cannot save a checkpoint",
                 .got = "tensors that changed while they were written",
                 .expected = "a state that does not change while it is saved"});
  }
  if (is_main) finish_folder(group, unfinished, *index);
}

std::filesystem::path save(const comm::Group& group, const std::filesystem::path& folder,
                           const RankState& state, const Metadata& description,
                           const CheckpointInfo& info) {
  const bool is_main = group.rank() == 0;
  const std::filesystem::path name =
      group.broadcast_text(is_main ? free_name(folder, info).string() : "", 0, "checkpoint");
  const auto unfinished = folder / (kUnfinished + name.string());
  write_folder(group, unfinished, state, description, info);
  if (is_main) {
    set_link(folder / kPublishing, name);
    std::filesystem::rename(unfinished, folder / name);
    sync_path(folder);
    link_last(folder, name);
  }
  group.barrier({.label = "checkpoint"});
  return folder / name;
}

// Whether a checkpoint may be written there: the path is free, or is a checkpoint.
bool is_free(const std::filesystem::path& path) {
  return path.has_filename() &&
         (!std::filesystem::exists(std::filesystem::symlink_status(path)) ||
          (!std::filesystem::is_symlink(path) && std::filesystem::exists(path / kIndexFile)));
}

// The name of a checkpoint while another one takes its place, if the file system cannot exchange
// two folders. Between the two renames the checkpoint has no other name; find_checkpoint() knows
// this.
std::filesystem::path former_of(const std::filesystem::path& path) {
  return path.parent_path() / (kFormer + path.filename().string());
}

void replace(const std::filesystem::path& unfinished, const std::filesystem::path& path) {
  const auto former = former_of(path);
  if (!std::filesystem::exists(path)) {
    std::filesystem::rename(unfinished, path);
  } else if (::renameat2(AT_FDCWD, unfinished.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) !=
             0) {
    std::filesystem::remove_all(former);
    std::filesystem::rename(path, former);
    std::filesystem::rename(unfinished, path);
  }
  sync_path(path.parent_path());
  std::filesystem::remove_all(unfinished);
  std::filesystem::remove_all(former);
  sync_path(path.parent_path());
}

std::filesystem::path agreed_path(const comm::Group& group, const std::filesystem::path& given) {
  const auto normal = std::filesystem::absolute(given).lexically_normal();
  const auto own = normal.has_filename() ? normal : normal.parent_path();
  const bool is_main = group.rank() == 0;
  const auto answer = group.broadcast_text(is_main ? (is_free(own) ? "+" : "-") + own.string() : "",
                                           0, "checkpoint");
  std::filesystem::path path = answer.substr(1);
  if (answer.front() == '-') {
    throw Error("checkpoint", ErrorKind::usage,
                {.what = "cannot save a checkpoint as " + path.string(),
                 .got = "something else there",
                 .expected = "a new path, or the folder of a checkpoint to replace"});
  }
  return path;
}

std::filesystem::path write(const comm::Group& group, const std::filesystem::path& given,
                            const RankState& state, const Metadata& description,
                            const CheckpointInfo& info) {
  auto path = agreed_path(group, given);
  const auto unfinished = path.parent_path() / (kUnfinished + path.filename().string());
  write_folder(group, unfinished, state, description, info);
  if (group.rank() == 0) replace(unfinished, path);
  group.barrier({.label = "checkpoint"});
  return path;
}

}  // namespace

std::filesystem::path save_checkpoint(const comm::Group& group, const std::filesystem::path& folder,
                                      const RankState& state, const Metadata& description,
                                      const CheckpointInfo& info) {
  return on_disk("save a checkpoint in " + folder.string(),
                 [&] { return save(group, folder, state, description, info); });
}

std::filesystem::path checkpoint_path(const comm::Group& group, const std::filesystem::path& path) {
  return on_disk("save a checkpoint as " + path.string(), [&] { return agreed_path(group, path); });
}

std::filesystem::path write_checkpoint(const comm::Group& group, const std::filesystem::path& path,
                                       const RankState& state, const Metadata& description,
                                       const CheckpointInfo& info) {
  return on_disk("save a checkpoint as " + path.string(),
                 [&] { return write(group, path, state, description, info); });
}

std::filesystem::path find_checkpoint(const std::filesystem::path& folder,
                                      const std::string& handle) {
  if (handle.empty()) return {};
  std::error_code none;
  if (handle == "last" || handle == "best") {
    const auto link = folder / handle;
    // A copy of the folder may have turned the link into a folder.
    if (!std::filesystem::is_symlink(link, none)) {
      return std::filesystem::exists(link, none) ? link : std::filesystem::path();
    }
    const auto target = std::filesystem::read_symlink(link);
    return target.is_absolute() ? target : folder / target;
  }
  const std::filesystem::path path(handle);
  // Resolves links such as `last` now, because they may point to another checkpoint later.
  const auto found = std::filesystem::canonical(path, none);
  if (!none) {
    if (std::filesystem::exists(found / kIndexFile)) return found;
    const bool is_part = found.filename() == kWeightsFile &&
                         std::filesystem::exists(found.parent_path() / kIndexFile);
    if (is_part) return found.parent_path();
    if (!std::filesystem::is_directory(found)) return found;
    for (const auto& run : {found, found / "checkpoints"}) {
      auto last = find_checkpoint(run, "last");
      if (!last.empty()) return last;
    }
  } else if (std::filesystem::exists(former_of(path) / kIndexFile)) {
    return former_of(path);  // after a kill between the renames of replace()
  } else if (path.has_parent_path() && (path.filename() == "last" || path.filename() == "best")) {
    auto named = find_checkpoint(path.parent_path() / "checkpoints", path.filename());
    if (!named.empty()) return named;
  }
  throw Error(
      "checkpoint", ErrorKind::usage,
      {.what = "there is no checkpoint " + path.string(),
       .got = none ? none.message() : "a folder without one",
       .expected = "last, best, the folder of a run or of a checkpoint, or a file of weights"});
}

bool lies_in(const std::filesystem::path& path, const std::filesystem::path& folder) {
  std::error_code none;
  for (auto part = std::filesystem::weakly_canonical(path, none); part.has_relative_path();
       part = part.parent_path()) {
    if (std::filesystem::equivalent(part, folder, none)) return true;
  }
  return false;
}

bool has_last_of_course(const std::filesystem::path& folder) {
  const auto last = linked_checkpoint(folder, "last");
  return !last.empty() && last != linked_checkpoint(folder, kBefore);
}

void begin_course(const std::filesystem::path& folder) {
  on_disk("begin in " + folder.string(), [&] {
    const auto last = linked_checkpoint(folder, "last");
    if (last.empty()) {
      std::filesystem::remove(folder / kBefore);
    } else {
      move_link(folder / kBefore, last.filename());
    }
  });
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

void move_link(const std::filesystem::path& link, const std::filesystem::path& target) {
  set_link(link, target);
  sync_path(link.parent_path());
}

void clean_up_unfinished(const std::filesystem::path& folder) {
  on_disk("clean up unfinished checkpoints in " + folder.string(), [&] {
    if (!std::filesystem::exists(folder)) return;
    for (const char* name : {"best", "last"}) link_again(folder, name);
    const auto published = linked_checkpoint(folder, kPublishing);
    if (!published.empty() && std::filesystem::exists(published)) {
      link_last(folder, published.filename());
    }
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      const auto name = entry.path().filename().string();
      if (name.starts_with(kUnfinished) || name.starts_with(kPublishing)) {
        std::filesystem::remove_all(entry.path());
      }
    }
  });
}

std::filesystem::path linked_checkpoint(const std::filesystem::path& folder,
                                        const std::string& name) {
  std::error_code none;
  const auto target = std::filesystem::read_symlink(folder / name, none);
  return !none && is_checkpoint_name(target) ? folder / target : std::filesystem::path();
}

}  // namespace troika::checkpoint
