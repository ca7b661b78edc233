#include "troika/train/loop/validator.h"

#include <cmath>

#include "troika/compat/torch.h"
#include "troika/train/callbacks/callbacks.h"
#include "troika/train/engine/pipeline_plan.h"
#include "troika/train/engine/random_state.h"

namespace troika::train {

Validator::Validator(const ValidatorParts& parts)
    : parts_(parts),
      log_(outputs_group(parts.setup.groups), observe::MetricLog::Phase::evaluation,
           computes_outputs(parts.setup.plan, parts.setup.world().rank())) {}

bool Validator::is_only_at_epoch_ends() const {
  const auto& limits = parts_.epochs.limits();
  return limits.validation_batches == 0 ||
         (parts_.setup.options.trainer.check_val_every_n_epoch == 1 &&
          limits.validation_every >= limits.micro_batches);
}

bool Validator::is_due_within_epoch(int64_t micro_batches) const {
  const auto& at = parts_.epochs.at();
  const auto& limits = parts_.epochs.limits();
  if (at.micro_batch > 0 || limits.validation_batches == 0) return false;
  if ((at.epoch + 1) % parts_.setup.options.trainer.check_val_every_n_epoch != 0) return false;
  const int64_t done = parts_.epochs.micro_batches_done();
  return done / limits.validation_every > (done - micro_batches) / limits.validation_every;
}

int64_t Validator::micro_batches_until_due() const {
  const int64_t every = parts_.epochs.limits().validation_every;
  return every - parts_.epochs.micro_batches_done() % every;
}

bool Validator::is_due_after_epoch() const {
  return parts_.epochs.limits().validation_batches > 0 &&
         (parts_.context.is_last_epoch() ||
          (parts_.epochs.at().epoch + 1) % parts_.setup.options.trainer.check_val_every_n_epoch ==
              0);
}

EvaluationLoop Validator::loop(int64_t batches) {
  return {RunMode::validate,       parts_.context, parts_.engine,
          parts_.setup.validation, batches,        parts_.stop};
}

void Validator::check_sanity() {
  const observe::Profile::Span span(parts_.measured.profile(), "run_sanity_check");
  const auto& setup = parts_.setup;
  const auto device = parts_.engine.placement().device;
  const auto random = random_state(device);
  parts_.engine.synchronize_replicas();
  const auto metrics = loop(parts_.epochs.limits().sanity_batches).rehearse(log_);
  require_monitored(setup.callbacks, setup.options, setup.task, metrics,
                    /*warns=*/setup.is_main());
  load_random_state(device, random);
}

bool Validator::validate() {
  auto& at = parts_.epochs.at();
  auto& train_log = parts_.log;
  train_log.read_losses();
  const TraceSpan span(parts_.measured.trace(), "compute", "validation");
  const observe::Profile::Span profiled(parts_.measured.profile(), "run_validation");
  // Saved because an interrupted validation is repeated with the same random numbers.
  const auto device = parts_.engine.placement().device;
  const auto random = random_state(device);
  at.validating = 1;
  const bool is_whole = loop(parts_.epochs.limits().validation_batches)
                            .run(parts_.hooks, log_, [&](const EvaluationLoop::Result& result) {
                              at.validation_loss = result.loss.value_or(NAN);
                              at.validation_accuracy = result.accuracy.value_or(NAN);
                              parts_.engine.judge(result.loss);
                              train_log.log_row(result.metrics(RunMode::validate), result.row);
                            });
  train_log.resume();
  parts_.setup.task.module().train();
  if (is_whole) {
    at.validating = 0;
    validated_samples_ = at.samples;
  } else {
    load_random_state(device, random);
  }
  return is_whole;
}

}  // namespace troika::train
