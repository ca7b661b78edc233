#include "troika/train/loop/evaluation_loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/data/loader.h"
#include "troika/data/sampler.h"
#include "troika/observe/progress.h"
#include "troika/train/engine/pipeline_plan.h"
#include "troika/train/options/limits.h"
#include "troika/train/task/step_error.h"

namespace troika::train {

namespace {

template <typename... Parameters>
struct NamedHook {
  const char* name;
  void (Hooks::*function)(FitContext&, Parameters...);
};
using Hook = NamedHook<>;
using BatchHook = NamedHook<const data::Batch&>;

struct StageHooks {
  Hook start, epoch_start;
  BatchHook batch_start, batch_end;
  Hook epoch_end, end;
};

constexpr StageHooks kValidationHooks{
    {"on_validation_start", &Hooks::on_validation_start},
    {"on_validation_epoch_start", &Hooks::on_validation_epoch_start},
    {"on_validation_batch_start", &Hooks::on_validation_batch_start},
    {"on_validation_batch_end", &Hooks::on_validation_batch_end},
    {"on_validation_epoch_end", &Hooks::on_validation_epoch_end},
    {"on_validation_end", &Hooks::on_validation_end}};
constexpr StageHooks kTestHooks{{"on_test_start", &Hooks::on_test_start},
                                {"on_test_epoch_start", &Hooks::on_test_epoch_start},
                                {"on_test_batch_start", &Hooks::on_test_batch_start},
                                {"on_test_batch_end", &Hooks::on_test_batch_end},
                                {"on_test_epoch_end", &Hooks::on_test_epoch_end},
                                {"on_test_end", &Hooks::on_test_end}};

const StageHooks& hooks_of(RunMode mode) {
  return mode == RunMode::test ? kTestHooks : kValidationHooks;
}

int64_t divide_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

void check_prediction(const at::Tensor& prediction, int64_t samples) {
  if (prediction.defined() && prediction.dim() > 0 && prediction.size(0) == samples) return;
  throw Error("train", ErrorKind::usage,
              {.what = "predict_step gives one row for each sample",
               .got = prediction.defined() ? c10::str("shape ", prediction.sizes()) : "nothing",
               .expected = fmt::format("{} rows", samples)});
}

}  // namespace

observe::MetricValues EvaluationLoop::Result::metrics(RunMode mode) const {
  const std::string prefix = mode == RunMode::test ? "test/" : "validation/";
  observe::MetricValues metrics;
  if (loss) metrics.emplace_back(prefix + "loss", *loss);
  if (accuracy) metrics.emplace_back(prefix + "accuracy", *accuracy);
  return metrics;
}

EvaluationLoop::EvaluationLoop(RunMode mode, FitContext& context, Evaluator& evaluator,
                               const data::Dataset& dataset, int64_t batches, Stop& stop)
    : mode_(mode),
      context_(context),
      evaluator_(evaluator),
      dataset_(dataset),
      batches_(batches),
      stop_(stop) {}

bool EvaluationLoop::for_each_batch(const std::string& label,
                                    const std::function<void(const data::Batch&)>& step) const {
  // Autocast is on over all batches, so weights are cast once.
  const auto& placement = evaluator_.placement();
  const nn::Autocast autocast(placement.precision, placement.device.type());
  const auto& options = context_.options;
  const auto replicas = samples_group(context_.groups);
  const int64_t batch = global_batch(options, replicas.size());
  const int64_t samples = std::min(dataset_.size(), batches_ * batch);
  const int64_t own_batch = std::max<int64_t>(1, batch / replicas.size());
  data::Loader loader(
      dataset_, data::evaluation_batches(samples, own_batch, {replicas.rank(), replicas.size()}),
      {}, loader_options(options, placement.device.type()));
  // The number of batches of the rank with most samples. All ranks must ask `stop` equally often.
  const int64_t most = divide_up(divide_up(samples, replicas.size()), own_batch);
  std::optional<observe::ProgressBar> progress;
  if (context_.group.rank() == 0 && options.trainer.enable_progress_bar) {
    progress.emplace();
    progress->start(label, most);
  }
  stop_.begin_evaluation();
  for (int64_t i = 0; i < most; ++i) {
    if (const auto loaded = loader.next()) step(*loaded);
    if (progress) progress->advance(1, std::min(batch, samples - i * batch));
    // After the last batch, finishing the evaluation is faster than repeating it later.
    if (i + 1 < most && stop_.after_batch(context_.seconds)) return false;
  }
  // The result or the training's progress is shown next.
  if (progress) progress->clear();
  return true;
}

std::optional<Evaluation> EvaluationLoop::evaluate(const HookCalls* hooks,
                                                   observe::MetricLog& log) {
  const auto& of = hooks_of(mode_);
  const auto call = [&](const BatchHook& hook, const data::Batch& batch) {
    if (hooks) hooks->call(hook.name, hook.function, batch);
  };
  Task& task = context_.task;
  Evaluation evaluation;
  const bool is_test = mode_ == RunMode::test;
  const char* label = !hooks ? "sanity check" : is_test ? "test" : "validation";
  const char* where = !hooks    ? "validation_step (sanity check)"
                      : is_test ? "test_step"
                                : "validation_step";
  const bool is_whole = for_each_batch(label, [&](const data::Batch& batch) {
    log.start_batch(batch.size());
    task.log_to(&log, batch.size());
    call(of.batch_start, batch);
    with_plain_errors(
        where, [&] { evaluator_.evaluate(mode_, batch, evaluation); }, &batch);
    call(of.batch_end, batch);
  });
  if (is_whole) return evaluation;
  log.clear();
  return {};
}

EvaluationLoop::Result EvaluationLoop::result_of(const Evaluation& evaluation,
                                                 observe::MetricLog& log) const {
  const auto& group = outputs_group(context_.groups);
  Result result{.loss = evaluation.loss.value_if_any(group, "evaluation loss"),
                .accuracy = evaluation.accuracy.value_if_any(group, "evaluation accuracy"),
                .row = {}};
  result.row = log.end_epoch();
  return result;
}

observe::MetricValues EvaluationLoop::rehearse(observe::MetricLog& log) {
  const at::NoGradGuard no_grad;
  context_.task.module().eval();
  observe::MetricValues metrics;
  if (const auto evaluation = evaluate(nullptr, log)) {
    const auto result = result_of(*evaluation, log);
    metrics = result.metrics(mode_);
    metrics.insert(metrics.end(), result.row.common.begin(), result.row.common.end());
  }
  log.clear();
  return metrics;
}

bool EvaluationLoop::run(const HookCalls& hooks, observe::MetricLog& log,
                         const std::function<void(const Result&)>& take) {
  const at::NoGradGuard no_grad;
  const auto& of = hooks_of(mode_);
  const auto call = [&](const Hook& hook) { hooks.call(hook.name, hook.function); };
  context_.log = &log;
  context_.task.module().eval();
  call(of.start);
  call(of.epoch_start);
  const auto evaluation = evaluate(&hooks, log);
  if (!evaluation) {
    if (mode_ == RunMode::validate) {
      hooks.call("on_validation_interrupted", &Hooks::on_validation_interrupted);
    }
    return false;
  }
  call(of.epoch_end);
  take(result_of(*evaluation, log));
  call(of.end);
  return true;
}

at::Tensor EvaluationLoop::predict(const HookCalls& hooks) {
  const at::NoGradGuard no_grad;
  context_.task.module().eval();
  hooks.call("on_predict_start", &Hooks::on_predict_start);
  hooks.call("on_predict_epoch_start", &Hooks::on_predict_epoch_start);
  std::vector<at::Tensor> predictions;
  const bool is_whole = for_each_batch("prediction", [&](const data::Batch& batch) {
    hooks.call("on_predict_batch_start", &Hooks::on_predict_batch_start, batch);
    const auto prediction = with_plain_errors(
        "predict_step", [&] { return evaluator_.predict(batch); }, &batch);
    check_prediction(prediction, batch.size());
    predictions.push_back(prediction.to(at::kCPU));
    hooks.call("on_predict_batch_end", &Hooks::on_predict_batch_end, batch, predictions.back());
  });
  if (!is_whole) return {};
  hooks.call("on_predict_epoch_end", &Hooks::on_predict_epoch_end);
  hooks.call("on_predict_end", &Hooks::on_predict_end);
  return predictions.empty() ? at::Tensor() : at::cat(predictions);
}

}  // namespace troika::train
