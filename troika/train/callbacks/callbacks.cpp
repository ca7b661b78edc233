#include "troika/train/callbacks/callbacks.h"

#include "troika/train/callbacks/early_stopping.h"
#include "troika/train/callbacks/model_checkpoint.h"

namespace troika::train {

Callbacks make_callbacks(const TrainOptions& options) {
  Callbacks result;
  if (!options.early_stopping.monitor.empty()) {
    result.push_back(std::make_shared<EarlyStopping>(options.early_stopping));
  }
  // Last, so that it saves what the others decided.
  result.push_back(std::make_shared<ModelCheckpoint>(options.checkpoint));
  return result;
}

}  // namespace troika::train
