// Every sample of a data set once, spread over the ranks: what validation, tests and predictions
// share.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>

#include "troika/data/dataset.h"
#include "troika/observe/metric_log.h"
#include "troika/train/engine/evaluator.h"
#include "troika/train/options/run_mode.h"
#include "troika/train/run/hook_calls.h"
#include "troika/train/run/stop.h"
#include "troika/train/task/task.h"

namespace troika::train {

// A pass over the first `batches` global batches of `dataset`, of which each rank takes a
// contiguous share, perhaps an empty one. Calls the hooks and steps of `mode`, in evaluation mode
// and without gradients. Asks `stop` between batches, and is left at the same one on all ranks.
// Called by all ranks; blocks. All that is referred to must outlive this object.
class EvaluationLoop {
 public:
  EvaluationLoop(RunMode mode, FitContext& context, Evaluator& evaluator,
                 const data::Dataset& dataset, int64_t batches, Stop& stop);

  // The result: the same on all ranks, except for what `row` has beyond its `common`.
  struct Result {
    std::optional<double> loss;      // none where no step added any
    std::optional<double> accuracy;  // none where no step added any
    observe::LoggedRow row;          // what the steps logged

    // "validation/loss" and "validation/accuracy", or those of "test", each if there is one.
    observe::MetricValues metrics(RunMode mode) const;
  };
  // Runs a validation or test. `take` gets the result between hooks of the epoch's end and of the
  // end. What the steps log goes to `log`. Returns false where it was left: then there is no
  // result, and nothing of it stays in `log`.
  bool run(const HookCalls& hooks, observe::MetricLog& log,
           const std::function<void(const Result&)>& take);
  // The same without hooks. Returns the metrics, those that are the same on all ranks; none where
  // it was left.
  observe::MetricValues rehearse(observe::MetricLog& log);

  // Returns this rank's predictions, one after another, on the host; undefined without samples, and
  // where it was left.
  at::Tensor predict(const HookCalls& hooks);

 private:
  // Called by all ranks, after the log's samples of the evaluation.
  Result result_of(const Evaluation& evaluation, observe::MetricLog& log) const;
  // Nothing where it was left.
  std::optional<Evaluation> evaluate(const HookCalls* hooks, observe::MetricLog& log);
  // Calls `step` with this rank's batches as the data set gives them, and shows progress under
  // `label`. Returns false where it was left.
  bool for_each_batch(const std::string& label,
                      const std::function<void(const data::Batch&)>& step) const;

  const RunMode mode_;
  FitContext& context_;
  Evaluator& evaluator_;
  const data::Dataset& dataset_;
  const int64_t batches_;
  Stop& stop_;
};

}  // namespace troika::train
