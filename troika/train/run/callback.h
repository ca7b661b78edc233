// The base class of callbacks, which accompany a run: they observe, log, or ask the run to save or
// stop.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "troika/checkpoint/safetensors.h"
#include "troika/train/task/hooks.h"

namespace troika::checkpoint {
class CheckpointReader;
struct RankState;
}  // namespace troika::checkpoint

namespace troika::train {

class Callback : public Hooks {
 public:
  // Unique among the callbacks of a run. The callback's state is saved under this name.
  virtual std::string name() const = 0;
  // Whether the callback decides by the epoch's metrics (see on_train_epoch_end). These callbacks
  // are called after all others.
  virtual bool monitors() const { return false; }
  // The metric that the callback needs; empty if none.
  virtual std::string monitored() const { return {}; }
  // Whether the callback reads FitContext::seconds, which is updated only then.
  virtual bool keeps_time() const { return false; }

  // Returns the state that the callback needs to resume. Called between micro-batches, before
  // on_save_checkpoint() of the same checkpoint. Entries with boxes are parts of sharded tensors.
  virtual checkpoint::NamedTensors state() const { return {}; }
  // Loads what state() returned. `saved` has the whole tensors, under names that begin with
  // `prefix`. Not called if the checkpoint has no state of this callback.
  virtual void load_state(const checkpoint::CheckpointReader& /*saved*/,
                          const std::string& /*prefix*/) {}
  // May replace the model's tensors in a checkpoint that is about to be written.
  virtual void replace_model(checkpoint::RankState&) const {}
  // Called for each checkpoint, when the states for it have been collected.
  virtual void on_save_checkpoint(FitContext&) {}
  // Called when the checkpoint is written. With checkpoint.async, this is some micro-batches later,
  // and not at the same micro-batch on all ranks.
  virtual void on_checkpoint(FitContext&, const std::filesystem::path& /*checkpoint*/) {}
};

using Callbacks = std::vector<std::shared_ptr<Callback>>;

}  // namespace troika::train
