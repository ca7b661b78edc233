#include "troika/train/callbacks/callbacks.h"

#include <map>
#include <string>
#include <typeinfo>

#include "troika/base/log.h"
#include "troika/train/callbacks/early_stopping.h"
#include "troika/train/callbacks/ema.h"
#include "troika/train/callbacks/exception_checkpoint.h"
#include "troika/train/callbacks/model_checkpoint.h"
#include "troika/train/callbacks/monitor.h"
#include "troika/train/callbacks/statistics.h"
#include "troika/train/callbacks/swa.h"
#include "troika/train/callbacks/throughput.h"
#include "troika/train/callbacks/timer.h"
#include "troika/train/options/options.h"
#include "troika/train/task/task.h"

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
  // Comes last, so its checkpoints include the decisions of all other callbacks.
  result.push_back(std::make_shared<ModelCheckpoint>(options.checkpoint));
  return result;
}

void require_monitored(const Callbacks& callbacks, const TrainOptions& options, const Task& task,
                       const observe::MetricValues& validated, bool warns) {
  if (validated.empty()) return;
  std::map<std::string, double> known(validated.begin(), validated.end());
  for (const char* name : {"train/loss", "train/epoch_loss", "train/lr"}) known[name] = 0;
  if (options.trainer.precision.starts_with("16")) known["train/loss_scale"] = 0;
  const bool all_is_known = typeid(task) == typeid(Task) && !options.throughput.enabled &&
                            options.statistics.every_n_steps == 0 &&
                            callbacks.size() == make_callbacks(options).size();
  for (const auto& callback : callbacks) {
    const auto name = callback->monitored();
    if (name.empty() || known.contains(name)) continue;
    if (all_is_known) refuse_monitor(callback->name(), name, known);
    if (!warns) continue;
    log::warn(
        "[train] {} monitors {}, which the validation steps do not log: the run fails at "
        "the end of the first epoch if nothing else does",
        callback->name(), name);
  }
}

}  // namespace troika::train
