// Checkpoints that are written beside training.
#pragma once

#include <filesystem>
#include <future>
#include <optional>

#include "troika/checkpoint/resume.h"
#include "troika/comm/group.h"

namespace troika::checkpoint {

// One at a time: a copy of the state is taken at once, and a thread of this object's writes it
// while the ranks train on. Its collectives are those of a group of its own, so that they do not
// come between training's. Not thread-safe; the destructor blocks until the thread has ended.
class CheckpointWriter {
 public:
  // Called by all ranks; blocks.
  explicit CheckpointWriter(const comm::Group& group);

  // save_checkpoint() of a copy of the state. Called by all ranks, when none is being written.
  // The copy's memory is kept for the next one.
  void start(const std::filesystem::path& folder, const RankState& state,
             const Metadata& description, const CheckpointInfo& info);

  // From start() until finish().
  bool is_writing() const { return writing_.valid(); }
  // Whether finish() would return, or throw, at once.
  bool is_done() const;
  // Blocks until the checkpoint is published, and returns its folder; throws what
  // save_checkpoint() did.
  std::filesystem::path finish() { return writing_.get(); }

 private:
  const comm::Group group_;
  RankState copy_;
  std::future<std::filesystem::path> writing_;  // destroyed first: its thread uses the others
};

}  // namespace troika::checkpoint
