// Something that accompanies a run: it watches, logs, or asks the run to save or stop.
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
  // Unlike that of any other callback of the run: its state is saved under it.
  virtual std::string name() const = 0;
  // Decides by the epoch's metrics: see on_train_epoch_end. Such callbacks come after all others.
  virtual bool monitors() const { return false; }
  // The metric that it cannot do without; empty for none.
  virtual std::string monitored() const { return {}; }
  // Looks at FitContext::seconds, which stands still otherwise.
  virtual bool keeps_time() const { return false; }

  // The state that its further course depends on, between passes, without what the checkpoint being
  // written would add. Entries with boxes are parts of tensors that ranks have between them.
  virtual checkpoint::NamedTensors state() const { return {}; }
  // Takes what state() gave, which `saved` has in whole under the names with `prefix` before them;
  // not called where it has nothing of this callback.
  virtual void load_state(const checkpoint::CheckpointReader& /*saved*/,
                          const std::string& /*prefix*/) {}
  // May put other tensors in place of the model that a checkpoint is about to hold.
  virtual void replace_model(checkpoint::RankState&) const {}
  // All states of a checkpoint were taken, whoever asked for it.
  virtual void on_save_checkpoint(FitContext&) {}
  // It was written. With checkpoint.async that is some passes later, and not at the same pass on
  // all ranks.
  virtual void on_checkpoint(FitContext&, const std::filesystem::path& /*checkpoint*/) {}
};

using Callbacks = std::vector<std::shared_ptr<Callback>>;

}  // namespace troika::train
