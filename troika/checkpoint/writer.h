// Writes checkpoints while training continues.
#pragma once

#include <filesystem>
#include <future>
#include <optional>

#include "troika/checkpoint/resume.h"
#include "troika/comm/group.h"

namespace troika::checkpoint {

// Writes one checkpoint at a time: copies the state at once, and writes the copy in a thread while
// the ranks continue training. Uses a group of its own, so its collectives do not mix with those of
// training. Not thread-safe; the destructor blocks until the thread has ended.
class CheckpointWriter {
 public:
  // Called by all ranks; blocks.
  explicit CheckpointWriter(const comm::Group& group);

  // Starts save_checkpoint() with a copy of the state. Called by all ranks, when no checkpoint is
  // being written. The copy's memory is reused by the next call.
  void start(const std::filesystem::path& folder, const RankState& state,
             const Metadata& description, const CheckpointInfo& info);

  // True from start() until finish().
  bool is_writing() const { return writing_.valid(); }
  // Whether finish() would return or throw immediately.
  bool is_done() const;
  // Blocks until the checkpoint is published, and returns its folder. Throws the errors of
  // save_checkpoint().
  std::filesystem::path finish() { return writing_.get(); }

 private:
  const comm::Group group_;
  RankState copy_;
  std::future<std::filesystem::path> writing_;  // destroyed first: its thread uses the rest
};

}  // namespace troika::checkpoint
