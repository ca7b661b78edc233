// Runs optimizer steps of an engine without the trainer.
#pragma once

#include <deque>

#include "troika/observe/step_times.h"
#include "troika/train/engine/engine.h"

namespace troika::train {

// A step of one micro-batch, or of several copies of it. `later` counts those of later steps before
// a drain.
class SingleBatch : public MicroBatches {
 public:
  SingleBatch(const data::Batch& batch, int64_t step, int64_t count = 1, int64_t later = 0)
      : MicroBatches(step, count), batch_(batch), until_drain_(count + later) {}
  int64_t until_drain() const override { return until_drain_; }
  const data::Batch* next() override {
    if (is_first_) {
      is_first_ = false;
      return &batch_;
    }
    copies_.push_back(batch_);
    for (auto* tensor : {&copies_.back().inputs, &copies_.back().targets})
      *tensor = tensor->clone();
    return &copies_.back();
  }
  void done(const at::Tensor&) override {}

 private:
  const data::Batch& batch_;
  const int64_t until_drain_;
  std::deque<data::Batch> copies_;
  bool is_first_ = true;
};

// `times` must be the object that the engine was made with.
inline StepResult train_on(Engine& engine, observe::StepTimes& times, const data::Batch& batch,
                           int64_t step, int64_t count = 1, int64_t later = 0) {
  times.begin(step);
  SingleBatch batches(batch, step, count, later);
  const auto result = engine.step(batches);
  times.finish();
  return result;
}

}  // namespace troika::train
