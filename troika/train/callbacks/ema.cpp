#include "troika/train/callbacks/ema.h"

#include "troika/base/error.h"
#include "troika/checkpoint/reader.h"
#include "troika/layout/plan.h"
#include "troika/train/run/fit_context.h"

namespace troika::train {

Ema::Ema(const EmaOptions& options)
    : options_(options), average_(options.decay, options.use_buffers) {}

void Ema::on_fit_start(FitContext& context) {
  if (!context.training.plan->keeps_replicas_equal()) {
    throw Error("train", ErrorKind::usage,
                {.what = "ema averages weights that are the same on all ranks after each step",
                 .got = "strategy " + context.training.plan->strategy,
                 .expected = "ddp, zero1, zero2 or zero3",
                 .hint = "swa averages at the end of epochs"});
  }
  if (options_.use_buffers && !context.training.plan->exchange.broadcast_buffers &&
      context.groups.data().size() > 1) {
    throw Error("train", ErrorKind::usage,
                {.what = "ema averages buffers that are the same on all ranks",
                 .got = "ddp.broadcast_buffers false",
                 .expected = "true, or ema.use_buffers false"});
  }
  average_.attach(context);
}

// Counts steps from 0, as EMAWeightAveraging does.
void Ema::on_train_batch_end(FitContext& context, const data::Batch&, const at::Tensor&) {
  const int64_t step = context.at.step - 1;
  if (context.at.micro_batch > 0 || step < options_.update_starting_at_step) return;
  if (step % options_.update_every_n_steps == 0) average_.update();
}

void Ema::on_validation_start(FitContext&) {
  average_.put_into_module();
}

void Ema::on_validation_end(FitContext&) {
  average_.take_back();
}

void Ema::on_validation_interrupted(FitContext&) {
  average_.take_back();
}

// Not in on_train_end, because other callbacks average the trained weights there.
void Ema::on_fit_end(FitContext&) {
  average_.put_into_module();
}

void Ema::on_exception(FitContext&, const std::exception&) {
  average_.take_back_alone();
}

void Ema::load_state(const checkpoint::CheckpointReader& saved, const std::string& prefix) {
  average_.load_from_model(saved, prefix);
}

}  // namespace troika::train
