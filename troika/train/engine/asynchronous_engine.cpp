#include "troika/train/engine/asynchronous_engine.h"

#include <utility>

#include "troika/base/error.h"
#include "troika/base/memory.h"
#include "troika/compat/torch.h"
#include "troika/layout/schedules/stage_weights.h"
#include "troika/observe/step_times.h"
#include "troika/train/options/options.h"
#include "troika/train/task/step_error.h"
#include "troika/train/task/task.h"

namespace troika::train {

using layout::Axis;

AsynchronousEngine::AsynchronousEngine(const EngineSetup& setup)
    : PipelineEngine(setup), losses_group_(*setup.groups.along(Axis::pipeline).split(0)) {}

int64_t AsynchronousEngine::most_ahead() const {
  return setup().plan.asynchronous().most_ahead();
}

std::function<void()> AsynchronousEngine::load(const checkpoint::CheckpointReader& saved,
                                               const checkpoint::NamedTensors& gradients) {
  if (gradients.empty()) return PipelineEngine::load(saved, gradients);
  throw Error("train", ErrorKind::usage,
              {.what = "a pipeline without flushes resumes between optimizer steps",
               .got = "a checkpoint within a step that accumulates",
               .expected = "one at the end of a step, or a strategy with flushes"});
}

void AsynchronousEngine::take(MicroBatches& batches, int64_t count) {
  for (; count > 0; --count, ++taken_) {
    const auto* loaded = batches.next();
    TROIKA_CHECK(loaded, "a pipeline's step is not left between two micro-batches");
    placed_->take(*loaded, first_step_ + taken_ / setup().plan.micro_batches);
  }
}

StepResult AsynchronousEngine::step(MicroBatches& batches) {
  TROIKA_CHECK(batches.begin() == 0, "a step is not left between two micro-batches");
  if (!placed_) {
    placed_.emplace(placed_parts(), 0);
    first_step_ = batches.step();
  }
  const int64_t left = batches.until_drain(), count = batches.count();
  take(batches, pipeline().to_begin(left));
  StepResult result;
  at::Tensor losses;
  with_plain_errors(
      "training_step",
      [&] {
        memory::restart_peak();
        pipeline().zero_grad();
        // Forward and backward passes alternate, so all of their time counts as backward.
        setup().times.end(observe::Phase::forward);
        const auto own = pipeline().advance(*placed_, left);
        setup().times.end(observe::Phase::backward);
        setup().times.add_pipeline(pipeline().times().pass_seconds(),
                                   pipeline().times().run_seconds());
        losses = share_losses(own, count);
        setup().times.end(observe::Phase::exposed_communication);
        optimizer_step(batches.step());
      },
      &placed_->batch(done_));
  if (counts_memory()) result.peak_tensor_bytes = memory::peak();
  placed_->drop(count);
  done_ += count;
  if (left == count) drain();
  for (const auto& loss : losses.unbind()) batches.done(loss);
  result.is_complete = true;
  return result;
}

void AsynchronousEngine::drain() {
  for (const auto& sent : sent_) sent.work.wait();
  sent_.clear();
  placed_.reset();
  taken_ = done_ = 0;
}

at::Tensor AsynchronousEngine::share_losses(const std::vector<at::Tensor>& own, int64_t count) {
  const auto losses = at::zeros({count}, at::TensorOptions(placement().device).dtype(at::kDouble));
  const auto& place = pipeline().place();
  const int last = place.stages() - 1;
  for (size_t i = 0; i < own.size(); ++i) {
    losses[static_cast<int64_t>(i)].copy_(own[i].reshape({}));
  }
  const bool is_sender = place.is_mine(last);
  auto work = losses_group_.broadcast(losses, place.pipeline_rank(last),
                                      {.label = "losses", .async_op = is_sender});
  if (!is_sender) return losses;
  while (!sent_.empty() && sent_.front().work.done()) sent_.pop_front();
  sent_.push_back({std::move(work), losses});
  return losses;
}

}  // namespace troika::train
