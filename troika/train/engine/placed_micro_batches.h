// Micro-batches on the compute device, from their first forward to their last backward pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

#include "troika/data/batch.h"
#include "troika/parallel/pipeline/micro_batch_source.h"

namespace troika::layout {
struct Plan;
}

namespace troika::train {

struct Placement;
class Task;

// Supplies a pipeline with the micro-batches that it has been given, numbered in their order. Not
// thread-safe.
class PlacedMicroBatches : public parallel::MicroBatchSource {
 public:
  // All references must outlive this object.
  struct Parts {
    Task& task;
    const Placement& placement;
    const layout::Plan& plan;
    int64_t seed = 0;  // of the run
    // Multiplies a loss by the loss scale, if any.
    std::function<at::Tensor(const at::Tensor& loss)> scaled;
  };
  // The first micro-batch gets the number `first`.
  PlacedMicroBatches(Parts parts, int64_t first);

  // Adds the next micro-batch, as the data set gives it, of the run's optimizer step `step`.
  void take(const data::Batch& batch, int64_t step);
  // Drops the first `count` micro-batches.
  void drop(int64_t count);
  const data::Batch& batch(int64_t micro_batch) const { return at(micro_batch).batch; }

  nn::Tensors inputs(int micro_batch) override;
  std::shared_ptr<const nn::OutputLoss> output_loss(int micro_batch) override;
  at::Tensor loss(int micro_batch, nn::Tensors outputs) override;
  at::Tensor root(int micro_batch, const at::Tensor& loss) override;
  std::shared_ptr<const nn::SampleKeys> keys(int micro_batch) override;

 private:
  struct Placed {
    data::Batch batch;
    std::shared_ptr<const nn::SampleKeys> keys = nullptr;
    bool is_asked = false;  // whether the model computes the loss
  };
  const Placed& at(int64_t micro_batch) const;

  const Parts parts_;
  int64_t first_;
  double factor_ = 1;  // of losses
  std::deque<Placed> placed_;
};

}  // namespace troika::train
