#include "troika/train/profile/counted_work.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "troika/comm/local/lone_rank.h"
#include "troika/compat/fake_tensors.h"
#include "troika/compat/flop_counter.h"
#include "troika/compat/torch.h"
#include "troika/nn/attention.h"
#include "troika/nn/block_wrapper.h"
#include "troika/nn/keyed_draws.h"
#include "troika/nn/zoo.h"
#include "troika/parallel/context/context_parallel.h"
#include "troika/train/engine/placement.h"
#include "troika/train/memory/cut_layers.h"
#include "troika/train/profile/counted_blocks.h"
#include "troika/train/task/task.h"

namespace troika::train {

namespace {

// Counts the FLOPs and the collectives of each block, and its outputs.
class WorkCounter : public nn::BlockWrapper {
 public:
  explicit WorkCounter(size_t blocks) : works_(blocks) {}

  nn::WrapperKind kind() const override { return nn::WrapperKind::gather; }
  nn::Tensors run(const nn::BlockRun& run, nn::Tensors inputs,
                  const nn::InnerBlocks& next) override {
    enter(run.begin, false);
    auto outputs = next(run, std::move(inputs));
    auto& work = works_[run.begin];
    for (const auto& output : outputs) {
      work.output_bytes += static_cast<double>(output.nbytes());
      if (output.dim() > 2) work.tokens = output.size(1);
      if (!output.requires_grad()) continue;
      output.register_hook([this, block = run.begin](const at::Tensor&) { enter(block, true); });
    }
    return outputs;
  }
  void called(const comm::Call& call) {
    if (!is_counting_) return;
    const auto bytes = [](const at::Tensor& one) { return one.defined() ? one.nbytes() : 0; };
    auto& work = works_[block_];
    auto& sums = is_backward_ ? work.backward_sums : work.forward_sums;
    sums.push_back(static_cast<double>(std::max(bytes(call.input), bytes(call.output))));
  }
  // Counts attention and returns its result.
  at::Tensor attend(const nn::AttentionHeads& heads, double dropout, nn::Attention attention,
                    const std::optional<nn::EqualPart>& part) {
    const int64_t before = counter_->flops();
    at::Tensor result = nn::causal_attention(heads, dropout, attention, part);
    const auto bytes = [](const at::Tensor& one) { return static_cast<double>(one.nbytes()); };
    auto& work = works_[block_].attention;
    work.flops += static_cast<double>(counter_->flops() - before);
    for (const at::Tensor& pair : {heads.keys, heads.values}) {
      work.pair_bytes += bytes(pair);
      work.pair_gradient_bytes +=
          static_cast<double>(pair.numel() * std::max<int64_t>(pair.element_size(), sizeof(float)));
      work.all_bytes += bytes(pair);
    }
    work.all_bytes += bytes(heads.queries) + bytes(result);
    work.heads = std::gcd(work.heads, heads.queries.size(2));
    ++work.calls;
    return result;
  }
  // Runs a step and counts it.
  void count(const std::function<void()>& step) {
    const compat::FlopCounter counter;
    counter_ = &counter;
    step();
    leave();
    is_counting_ = false;
    counter_ = nullptr;
  }
  std::vector<BlockWork> works() const { return works_; }

 private:
  void leave() {
    if (is_counting_) works_[block_].flops += static_cast<double>(counter_->flops() - before_);
    before_ = counter_->flops();
  }
  void enter(size_t block, bool is_backward) {
    if (!counter_) return;
    leave();
    is_counting_ = true;
    block_ = block;
    is_backward_ = is_backward;
  }

  std::vector<BlockWork> works_;
  const compat::FlopCounter* counter_ = nullptr;
  int64_t before_ = 0;
  size_t block_ = 0;
  bool is_counting_ = false, is_backward_ = false;
};

}  // namespace

CountedBatches::CountedBatches(const data::Dataset& dataset, int64_t samples)
    : larger(profiled_samples(dataset, std::min<int64_t>(4, samples))),
      smaller(profiled_samples(dataset, std::min<int64_t>(2, (larger.size() + 1) / 2))),
      whole(profiled_samples(dataset, samples)) {}

std::vector<BlockWork> work_of_rank(const TrainOptions& options, const CountedBatches& batches,
                                    const nn::NumericPrecision& precision, const RankAxes& axes) {
  const compat::FakeTensorGuard no_memory;
  Task task(nn::make_model(options.model));
  const Placement placement{.precision = precision};
  placement.place(task.module());
  auto& model = dynamic_cast<nn::Model&>(task.module());
  const size_t blocks = model.blocks().size();
  const auto counter = std::make_shared<WorkCounter>(blocks);
  std::optional<CutLayers> cut;
  if (axes.tensor > 1) {
    cut.emplace(model, task.split_table(), axes.tensor, axes.sequence,
                [&](const comm::Call& call) { counter->called(call); });
  }
  std::optional<parallel::ContextParallel> context;
  if (axes.context > 1) {
    context.emplace(model, comm::local::lone_rank(axes.context, [](const comm::Call&) {}),
                    task.split_table(), parallel::ContextOptions{.tensor_ranks = axes.tensor});
  }
  const PassMemory pass(task, precision, batches.smaller, batches.larger);
  const auto memory = memory_of_blocks(pass.parts(batches.whole.size()), blocks);
  std::vector<layout::BlockInStage> stages(blocks);
  if (cut) {
    stages = count_stages(task, precision, batches.smaller, batches.larger, batches.whole.size());
  }
  task.module().train();
  if (!context) {
    for (auto* module : nn::attention_modules(model)) {
      module->use_core([&](const nn::AttentionHeads& heads, double dropout, nn::Attention attention,
                           const std::optional<nn::EqualPart>& part) {
        return counter->attend(heads, dropout, attention, part);
      });
    }
  }
  const nn::WrapperGuard counting(model, counter);
  counter->count([&] {
    const auto batch = placement.place(batches.whole);
    const nn::KeyedDraws draws(nn::some_samples(batch.size()));
    const at::Tensor loss = [&] {
      const nn::Autocast autocast(precision, at::kCPU);
      return task.training_step(batch);
    }();
    loss.backward();
  });
  auto works = counter->works();
  for (size_t i = 0; i < blocks; ++i) {
    works[i].memory = memory[i];
    works[i].in_stage = stages[i];
  }
  return works;
}

double divided_share(double whole, double part, int ranks) {
  // The first run of an operator takes some bytes more than later ones.
  constexpr double kLeast = 1e-3;
  if (whole <= 0) return 0;
  const double cut = std::clamp((1 - part / whole) * ranks / (ranks - 1), 0.0, 1.0);
  return cut < kLeast ? 0 : cut;
}

}  // namespace troika::train
