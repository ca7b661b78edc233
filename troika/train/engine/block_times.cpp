#include "troika/train/engine/block_times.h"

#include <functional>
#include <numeric>
#include <utility>

#include "troika/base/clock.h"
#include "troika/compat/flop_counter.h"
#include "troika/compat/torch.h"
#include "troika/parallel/pipeline/pipeline_run.h"
#include "troika/train/task/task.h"

namespace troika::train {

// A single micro-batch.
class BlockTimes::Source : public parallel::MicroBatchSource {
 public:
  Source(Task& task, const data::Batch& batch)
      : task_(task),
        batch_(batch),
        keys_(std::make_shared<nn::SampleKeys>(nn::some_samples(batch.size()))) {}

  nn::Tensors inputs(int) override { return task_.block_inputs(batch_); }
  std::shared_ptr<const nn::OutputLoss> output_loss(int) override {
    auto loss = task_.output_loss(batch_);
    asks_ = loss != nullptr;
    return loss;
  }
  at::Tensor loss(int, nn::Tensors outputs) override {
    return task_.finish_training(std::move(outputs), asks_, batch_);
  }
  at::Tensor root(int, const at::Tensor& loss) override { return loss; }
  std::shared_ptr<const nn::SampleKeys> keys(int) override { return keys_; }

 private:
  Task& task_;
  const data::Batch& batch_;
  const std::shared_ptr<const nn::SampleKeys> keys_;
  bool asks_ = false;
};

namespace {

layout::Schedule on_one_rank(size_t stages) {
  layout::Schedule schedule;
  auto& actions = schedule.ranks.emplace_back();
  for (size_t i = 0; i < stages; ++i) {
    actions.push_back({layout::ActionKind::forward, static_cast<int>(i), 0});
  }
  return schedule;
}

}  // namespace

layout::StageEnds each_block(const nn::Model& model) {
  layout::StageEnds ends(model.blocks().size());
  std::iota(ends.begin(), ends.end(), size_t{1});
  return ends;
}

struct BlockTimes::Parts {
  Parts(Task& task, const Placement& placement, const data::Batch& batch, const comm::Group& group)
      : task(task),
        placement(placement),
        stages(task.blocks(), each_block(task.blocks())),
        place(layout::Mesh(layout::Axis::pipeline, 1), 0, on_one_rank(stages.size())),
        messages(group, {}, {}, placement.memory_format, placement.device),
        source(task, batch),
        keeps_gradients(group.size() > 1),
        seconds(stages.size()),
        marker(at::zeros({1}, at::TensorOptions(placement.device))) {
    for (size_t i = 0; i < stages.size(); ++i) {
      passes.emplace_back(task.blocks(), stages[static_cast<int>(i)]);
    }
  }

  parallel::PipelineRun make_run() {
    return parallel::PipelineRun(
        {task.blocks(), stages, place, messages,
         [this](int stage) -> parallel::StagePasses& { return passes[static_cast<size_t>(stage)]; },
         source, placement.precision, placement.device.type(), times});
  }
  // Blocks until the device has done all that was queued.
  void wait_for_device() {
    if (!placement.device.is_cpu()) marker.item<float>();
  }

  Task& task;
  const Placement& placement;
  const parallel::StagesOfModel stages;
  const parallel::PipelinePlace place;
  parallel::StageMessages messages;
  Source source;
  const bool keeps_gradients;
  std::vector<parallel::StagePasses> passes;
  std::vector<BlockSeconds> seconds;
  const at::Tensor marker;
  parallel::ActionTimes times;

  // Calls `note(pass, block)` after each pass, with the kind of the pass.
  void run_micro_batch(bool splits, const std::function<void(layout::ActionKind, size_t)>& note) {
    using layout::ActionKind;
    const at::AutoGradMode with_gradients(true);
    task.module().train();
    auto run = make_run();
    const int last = static_cast<int>(stages.size()) - 1;
    for (int stage = 0; stage <= last; ++stage) {
      run.train_forward({ActionKind::forward, stage, 0});
      note(ActionKind::forward, static_cast<size_t>(stage));
    }
    for (int stage = last; stage >= 0; --stage) {
      const auto kind = splits ? ActionKind::backward_input : ActionKind::backward;
      run.backward({kind, stage, 0}, splits);
      note(kind, static_cast<size_t>(stage));
    }
    // As in a stage of several blocks, whose weight parts find nothing of their blocks in caches.
    for (int stage = last; splits && stage >= 0; --stage) {
      run.backward_weight({ActionKind::backward_weight, stage, 0});
      note(ActionKind::backward_weight, static_cast<size_t>(stage));
    }
    if (!keeps_gradients) task.module().zero_grad(/*set_to_none=*/true);
  }
};

BlockTimes::BlockTimes(Task& task, const Placement& placement, const data::Batch& batch,
                       const comm::Group& group)
    : parts_(std::make_unique<Parts>(task, placement, batch, group)) {}

BlockTimes::~BlockTimes() {
  parts_->task.module().zero_grad(/*set_to_none=*/true);
}

const std::vector<BlockSeconds>& BlockTimes::seconds() const {
  return parts_->seconds;
}

void BlockTimes::forget() {
  for (auto& block : parts_->seconds) block = {};
}

double BlockTimes::run(Round round) {
  using layout::ActionKind;
  auto& parts = *parts_;
  parts.wait_for_device();
  const bool splits = round == Round::split;
  double sum = 0;
  Stopwatch watch;
  parts.run_micro_batch(splits, [&](ActionKind pass, size_t block) {
    parts.wait_for_device();
    const double seconds = watch.seconds();
    watch.restart();
    sum += seconds;
    if (round == Round::extra) return;
    auto& times = parts.seconds[block];
    // Forward passes count in rounds of whole backward passes alone, so that both lists are of the
    // same rounds.
    if (pass == ActionKind::forward && !splits) times.forward.push_back(seconds);
    if (pass == ActionKind::backward) times.backward.push_back(seconds);
    if (pass == ActionKind::backward_input) times.backward_input.push_back(seconds);
    if (pass == ActionKind::backward_weight) times.backward_weight.push_back(seconds);
  });
  return sum;
}

std::vector<BlockProducts> BlockTimes::count_products() {
  std::vector<BlockProducts> result(parts_->seconds.size());
  const compat::FlopCounter counter;
  size_t seen = 0;
  parts_->run_micro_batch(/*splits=*/false, [&](layout::ActionKind pass, size_t block) {
    const auto works = counter.works();
    auto& of_block = result[block];
    auto& products = pass == layout::ActionKind::forward ? of_block.forward : of_block.backward;
    for (; seen < works.size(); ++seen) {
      products.push_back(
          {static_cast<double>(works[seen].flops), static_cast<double>(works[seen].bytes)});
    }
  });
  return result;
}

}  // namespace troika::train
