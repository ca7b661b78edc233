#include "troika/train/engine/placed_micro_batches.h"

#include <utility>

#include "troika/base/error.h"
#include "troika/base/random.h"
#include "troika/compat/torch.h"
#include "troika/layout/plan.h"
#include "troika/train/engine/placement.h"
#include "troika/train/task/task.h"

namespace troika::train {

PlacedMicroBatches::PlacedMicroBatches(Parts parts, int64_t first)
    : parts_(std::move(parts)), first_(first) {
  const auto& plan = parts_.plan;
  if (plan.micro_batches > 1 && !plan.sums_micro_batches) {
    factor_ = 1.0 / static_cast<double>(plan.micro_batches);
  }
}

void PlacedMicroBatches::take(const data::Batch& batch, int64_t step) {
  auto& placed = placed_.emplace_back(Placed{.batch = parts_.placement.place(batch)});
  if (placed.batch.samples.empty()) return;
  placed.keys = std::make_shared<nn::SampleKeys>(
      nn::SampleKeys{.seed = mix(static_cast<uint64_t>(parts_.seed), static_cast<uint64_t>(step)),
                     .samples = placed.batch.samples});
}

void PlacedMicroBatches::drop(int64_t count) {
  placed_.erase(placed_.begin(), placed_.begin() + count);
  first_ += count;
}

const PlacedMicroBatches::Placed& PlacedMicroBatches::at(int64_t micro_batch) const {
  const auto index = static_cast<size_t>(micro_batch - first_);
  TROIKA_CHECK(micro_batch >= first_ && index < placed_.size(), "the micro-batch was given");
  return placed_[index];
}

nn::Tensors PlacedMicroBatches::inputs(int micro_batch) {
  return parts_.task.block_inputs(batch(micro_batch));
}

std::shared_ptr<const nn::OutputLoss> PlacedMicroBatches::output_loss(int micro_batch) {
  auto loss = parts_.task.output_loss(batch(micro_batch));
  placed_[static_cast<size_t>(micro_batch - first_)].is_asked = loss != nullptr;
  return loss;
}

at::Tensor PlacedMicroBatches::loss(int micro_batch, nn::Tensors outputs) {
  const auto& placed = at(micro_batch);
  return parts_.task.finish_training(std::move(outputs), placed.is_asked, placed.batch);
}

at::Tensor PlacedMicroBatches::root(int, const at::Tensor& loss) {
  return parts_.scaled(factor_ == 1 ? loss : loss * factor_);
}

std::shared_ptr<const nn::SampleKeys> PlacedMicroBatches::keys(int micro_batch) {
  return at(micro_batch).keys;
}

}  // namespace troika::train
