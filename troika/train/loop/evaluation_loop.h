// Iterates once over a data set, spread over the ranks: the loop of validation, tests and
// predictions.
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

// Evaluates the first `batches` global batches of `dataset`, in evaluation mode and without
// gradients, with the hooks and steps of `mode`. Each rank takes a contiguous share, which may be
// empty. Asks `stop` between batches; a stop interrupts the loop at the same batch on all ranks.
// Called by all ranks; blocks. All referenced objects must outlive this object.
class EvaluationLoop {
 public:
  EvaluationLoop(RunMode mode, FitContext& context, Evaluator& evaluator,
                 const data::Dataset& dataset, int64_t batches, Stop& stop);

  // The result. It is the same on all ranks, except for values of `row` outside `row.common`.
  struct Result {
    std::optional<double> loss;      // empty if no step added a loss
    std::optional<double> accuracy;  // empty if no step added an accuracy
    observe::LoggedRow row;          // logged by the steps

    // "validation/loss" and "validation/accuracy", or the same of "test", if present.
    observe::MetricValues metrics(RunMode mode) const;
  };
  // Runs a validation or test. Calls `take` with the result after the hooks of the epoch's end and
  // before the hook of the evaluation's end. The steps log to `log`. Returns false if interrupted;
  // there is then no result, and `log` is cleared.
  bool run(const HookCalls& hooks, observe::MetricLog& log,
           const std::function<void(const Result&)>& take);
  // The same without hooks. Returns the metrics that are the same on all ranks; empty if
  // interrupted.
  observe::MetricValues rehearse(observe::MetricLog& log);

  // Returns this rank's predictions, concatenated, on the host; undefined without samples or if
  // interrupted.
  at::Tensor predict(const HookCalls& hooks);

 private:
  // Called by all ranks, when `log` has all samples of the evaluation.
  Result result_of(const Evaluation& evaluation, observe::MetricLog& log) const;
  // Empty if interrupted.
  std::optional<Evaluation> evaluate(const HookCalls* hooks, observe::MetricLog& log);
  // Calls `step` with this rank's batches, as the data set gives them, and shows progress under
  // `label`. Returns false if interrupted.
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
