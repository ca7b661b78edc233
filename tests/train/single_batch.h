// Runs optimizer steps of an engine without the trainer.
#pragma once

#include "troika/observe/step_times.h"
#include "troika/train/engine/engine.h"

namespace troika::train {

// A step of one micro-batch.
class SingleBatch : public MicroBatches {
 public:
  SingleBatch(const data::Batch& batch, int64_t step)
      : MicroBatches(step, /*count=*/1), batch_(batch) {}
  const data::Batch* next() override { return &batch_; }
  void done(const at::Tensor&) override {}

 private:
  const data::Batch& batch_;
};

// `times` must be the object that the engine was made with.
inline StepResult train_on(Engine& engine, observe::StepTimes& times, const data::Batch& batch,
                           int64_t step) {
  times.begin(step);
  SingleBatch batches(batch, step);
  const auto result = engine.step(batches);
  times.finish();
  return result;
}

}  // namespace troika::train
