// Something that accompanies a run: it watches, logs, or asks the run to save or stop.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "troika/train/hooks.h"
#include "troika/train/safetensors.h"

namespace troika::train {

class Callback : public Hooks {
 public:
  // Unlike that of any other callback of the run: its state is saved under it.
  virtual std::string name() const = 0;
  // Decides by the epoch's metrics: see on_train_epoch_end. Such callbacks come after all others.
  virtual bool monitors() const { return false; }
  // Looks at FitContext::seconds, which stands still otherwise.
  virtual bool keeps_time() const { return false; }

  // What its further course depends on, between passes and without what the checkpoint being
  // written would add.
  virtual NamedTensors state() const { return {}; }
  // What state() gave before `checkpoint` was written; not called where that has nothing of this
  // callback.
  virtual void load_state(const NamedTensors&, const std::filesystem::path& /*checkpoint*/) {}
  // All states of a checkpoint were taken, whoever asked for it.
  virtual void on_save_checkpoint(FitContext&) {}
  // It was written; `former` was the latest before it, or is empty. With checkpoint.async that is
  // some passes later, and not at the same pass on all ranks.
  virtual void on_checkpoint(FitContext&, const std::filesystem::path& /*checkpoint*/,
                             const std::filesystem::path& /*former*/) {}
};

using Callbacks = std::vector<std::shared_ptr<Callback>>;

}  // namespace troika::train
