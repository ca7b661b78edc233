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

namespace {

// The ranks to which a rank of the last stage sends losses.
comm::Group losses_group(const comm::MeshGroups& groups) {
  const bool is_uneven = groups.mesh().has_uneven_stages();
  return *(is_uneven ? groups.world() : groups.along(layout::Axis::pipeline)).split(0);
}

}  // namespace

AsynchronousEngine::AsynchronousEngine(const EngineSetup& setup)
    : PipelineEngine(setup), losses_group_(losses_group(setup.groups)) {}

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
  take(batches, pipeline().reach(count, left) - ahead());
  StepResult result;
  std::vector<at::Tensor> own;
  at::Tensor losses;
  with_plain_errors(
      "training_step",
      [&] {
        memory::restart_peak();
        // Other stages may step more often or less often
        // (layout::WithoutFlushes::steps_by_replicas).
        for (int64_t trained = 0; trained < count;) {
          const int64_t in_step = pipeline().in_step(left - trained);
          pipeline().zero_grad();
          // Forward and backward passes alternate, so all of their time counts as backward.
          setup().times.end(observe::Phase::forward);
          for (auto& loss : pipeline().advance(*placed_, left - trained)) {
            own.push_back(std::move(loss));
          }
          setup().times.end(observe::Phase::backward);
          setup().times.add_pipeline(pipeline().times().pass_seconds(),
                                     pipeline().times().run_seconds());
          trained += in_step;
          if (trained == count) {
            losses = share_losses(own, count);
            setup().times.end(observe::Phase::exposed_communication);
          }
          optimizer_step(batches.step(), pipeline().learning_rate_factor());
        }
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
  const auto& place = pipeline().place();
  const int last = place.stages() - 1;
  if (!place.shares_micro_batches()) {
    return share_losses_of(place.pipeline_rank(last), place.is_mine(last), own, 1, 0, count);
  }
  const auto replicas = place.replicas(last);
  at::Tensor sum;
  for (size_t replica = 0; replica < replicas.size(); ++replica) {
    const bool is_sender = place.is_mine(last) && place.replica() == static_cast<int>(replica);
    const auto losses =
        share_losses_of(replicas[replica], is_sender, own, static_cast<int64_t>(replicas.size()),
                        static_cast<int64_t>(replica), count);
    sum = sum.defined() ? sum + losses : losses;
  }
  return sum;
}

at::Tensor AsynchronousEngine::share_losses_of(int sender, bool is_sender,
                                               const std::vector<at::Tensor>& own, int64_t replicas,
                                               int64_t replica, int64_t count) {
  const auto losses = at::zeros({count}, at::TensorOptions(placement().device).dtype(at::kDouble));
  if (is_sender) {
    // The first of the step's micro-batches that is the sender's.
    int64_t next = ((replica - done_) % replicas + replicas) % replicas;
    for (const auto& loss : own) {
      losses[next].copy_(loss.reshape({}));
      next += replicas;
    }
  }
  auto work = losses_group_.broadcast(losses, sender, {.label = "losses", .async_op = is_sender});
  if (!is_sender) return losses;
  while (!sent_.empty() && sent_.front().work.done()) sent_.pop_front();
  sent_.push_back({std::move(work), losses});
  return losses;
}

}  // namespace troika::train
