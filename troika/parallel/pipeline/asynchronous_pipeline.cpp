// Pipeline's functions for pipelines without flushes.
#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/parallel/pipeline/own_stages.h"
#include "troika/parallel/pipeline/pipeline.h"
#include "troika/parallel/pipeline/pipeline_run.h"

namespace troika::parallel {

// Their stages would have to wait for each other's gradients in each step.
void Pipeline::refuse_shared_parameters() const {
  const auto tied = tied_sets(*model_, stages_, place_);
  if (tied.empty()) return;
  throw Error("parallel", ErrorKind::usage,
              {.what = "a pipeline without flushes shares a parameter between ranks",
               .got = *tied.front().names.begin(),
               .expected = "parameters of one rank each",
               .hint = "a cut that keeps the parameter on one rank, a model whose embedding and "
                       "head are apart, or schedule 1f1b with flushes"});
}

void Pipeline::make_asynchronous() {
  const auto order = layout::asynchronous_stage(asynchronous_pipeline(options_, place_.mesh()),
                                                place_.own_stages().front());
  asynchronous_ = std::make_unique<AsynchronousPasses>(AsynchronousPasses::Parts{
      .order = order,
      .stages = stages_,
      .own = *own_,
      .batch_norms = *batch_norms_,
      .replica = place_.shares_micro_batches() ? place_.replica() : 0,
      .gradient_factor =
          static_cast<double>(options_.micro_batches) / static_cast<double>(order.micro_batches)});
}

std::vector<at::Tensor> Pipeline::advance(MicroBatchSource& source, int64_t left) {
  TROIKA_CHECK(asynchronous_, "advance() is for pipelines without flushes");
  if (asynchronous_->is_drained()) {
    start();
    asynchronous_->fill(make_run(source, *messages_.training, times_));
  }
  times_.begin_run();
  auto losses = asynchronous_->advance(left);
  times_.end_run();
  most_active_ = asynchronous_->most_active();
  return losses;
}

void Pipeline::begin_asynchronous_step() {
  asynchronous_->begin_step();
  if (!asynchronous_->is_drained()) return;
  messages_.training->finish();
  is_running_ = false;
}

int64_t Pipeline::reach(int64_t count, int64_t left) const {
  TROIKA_CHECK(asynchronous_, "reach() is for pipelines without flushes");
  return asynchronous_->reach(count, left);
}

int64_t Pipeline::in_step(int64_t left) const {
  TROIKA_CHECK(asynchronous_, "in_step() is for pipelines without flushes");
  return asynchronous_->in_step(left);
}

double Pipeline::learning_rate_factor() const {
  return asynchronous_ ? asynchronous_->order().learning_rate_factor : 1;
}

size_t Pipeline::most_versions() const {
  return asynchronous_ ? asynchronous_->most_versions() : 1;
}

}  // namespace troika::parallel
