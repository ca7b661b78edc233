#include "troika/train/callbacks/callbacks.h"

#include "troika/train/callbacks/early_stopping.h"
#include "troika/train/callbacks/ema.h"
#include "troika/train/callbacks/exception_checkpoint.h"
#include "troika/train/callbacks/model_checkpoint.h"
#include "troika/train/callbacks/statistics.h"
#include "troika/train/callbacks/swa.h"
#include "troika/train/callbacks/throughput.h"
#include "troika/train/callbacks/timer.h"

namespace troika::train {

Callbacks make_callbacks(const TrainOptions& options) {
  Callbacks result;
  if (!options.trainer.max_time.empty() || options.timer.verbose) {
    result.push_back(std::make_shared<Timer>(options.trainer.max_time, options.timer));
  }
  if (options.ema.enabled) result.push_back(std::make_shared<Ema>(options.ema));
  if (options.swa.swa_lrs > 0) {
    result.push_back(std::make_shared<Swa>(options.swa, options.trainer.max_epochs));
  }
  if (!options.early_stopping.monitor.empty()) {
    result.push_back(std::make_shared<EarlyStopping>(options.early_stopping));
  }
  if (options.statistics.every_n_steps > 0) {
    result.push_back(std::make_shared<StatisticsMonitor>(options.statistics));
  }
  if (options.throughput.enabled)
    result.push_back(std::make_shared<Throughput>(options.throughput));
  if (options.checkpoint.on_exception) result.push_back(std::make_shared<ExceptionCheckpoint>());
  // Last, so that it saves what the others decided.
  result.push_back(std::make_shared<ModelCheckpoint>(options.checkpoint));
  return result;
}

}  // namespace troika::train
