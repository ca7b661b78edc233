#include "troika/train/memory/pass_memory.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/memory.h"
#include "troika/compat/autograd.h"
#include "troika/compat/tensor_memory.h"
#include "troika/compat/torch.h"
#include "troika/nn/keyed_draws.h"
#include "troika/nn/model.h"
#include "troika/nn/state.h"
#include "troika/parallel/block_parameters.h"
#include "troika/train/engine/placement.h"
#include "troika/train/memory/watch.h"

namespace troika::train {

namespace {

// Observes blocks at the moments at which parallel::BlockParameters gathers their parameters.
class WatchedBlocks : public nn::BlockWrapper {
 public:
  // Must outlive the graphs of the passes.
  WatchedBlocks(const nn::Model& model, MemoryWatch& watch)
      : order_(model.blocks().size()), watch_(watch) {}

  nn::WrapperKind kind() const override { return nn::WrapperKind::gather; }
  nn::Tensors run(const nn::BlockRun& run, nn::Tensors inputs,
                  const nn::InnerBlocks& next) override {
    note(order_.run(run));
    auto outputs = next(run, std::move(inputs));
    for (const auto& output : outputs) {
      if (!output.requires_grad()) continue;
      output.register_hook(
          [this, block = run.begin](const at::Tensor&) { note(order_.backward(block)); });
    }
    return outputs;
  }

 private:
  void note(const parallel::BlockOrder::Stop& stop) {
    watch_.note({PassEvent::Kind::block, stop.block, stop.next});
  }

  parallel::BlockOrder order_;
  MemoryWatch& watch_;
};

double run_validation(Task& task, const nn::NumericPrecision& precision, const data::Batch& batch) {
  task.module().eval();
  const int64_t before = memory::live();
  memory::restart_peak();
  const at::NoGradGuard no_grad;
  const nn::Autocast autocast(precision, at::kCPU);
  Evaluation evaluation;
  task.validation_step(Placement{.precision = precision}.place(batch), evaluation);
  return static_cast<double>(memory::peak() - before);
}

std::vector<PassPart> run(Task& task, const nn::NumericPrecision& precision, data::Batch batch) {
  auto parameters = nn::trained_parameters(task.module());
  task.module().train();
  task.module().zero_grad(/*set_to_none=*/true);
  MemoryWatch watch;
  auto* model = dynamic_cast<nn::Model*>(&task.module());
  const nn::WrapperGuard watching =
      model ? nn::WrapperGuard(*model, std::make_shared<WatchedBlocks>(*model, watch))
            : nn::WrapperGuard();
  std::vector<std::unique_ptr<compat::GradientHook>> hooks;
  for (size_t i = 0; i < parameters.size(); ++i) {
    hooks.push_back(std::make_unique<compat::GradientHook>(
        parameters[i].second,
        [&watch, i, &parameter = parameters[i].second] { watch.take(i, parameter); }));
  }
  batch = Placement{.precision = precision}.place(std::move(batch));
  const nn::KeyedDraws draws(nn::some_samples(batch.size()));
  const at::Tensor loss = [&] {
    const nn::Autocast autocast(precision, at::kCPU);
    return task.training_step(batch);
  }();
  watch.note({PassEvent::Kind::forward_done});
  loss.backward();
  watch.note({});
  return std::move(watch).parts();
}

}  // namespace

std::vector<PassPart> interpolate(const std::vector<PassPart>& smaller,
                                  const std::vector<PassPart>& larger, double share) {
  if (!std::ranges::equal(smaller, larger, {}, &PassPart::until, &PassPart::until)) {
    throw Error("train", ErrorKind::failure,
                {.what = "memory cannot be predicted for a task whose backward pass takes another "
                         "way for another size of batch"});
  }
  std::vector<PassPart> result;
  for (size_t i = 0; i < smaller.size(); ++i) {
    result.push_back({smaller[i].until, std::lerp(smaller[i].peak, larger[i].peak, share),
                      std::lerp(smaller[i].live, larger[i].live, share)});
  }
  return result;
}

PassMemory::PassMemory(Task& task, const nn::NumericPrecision& precision,
                       const data::Batch& smaller, const data::Batch& larger)
    : smaller_(smaller.size()), larger_(larger.size()) {
  TROIKA_CHECK(compat::counts_tensor_memory(), "tensors are not counted");
  of_smaller_ = run(task, precision, smaller);
  of_larger_ = larger_ == smaller_ ? of_smaller_ : run(task, precision, larger);
  validation_of_smaller_ = run_validation(task, precision, smaller);
  validation_of_larger_ =
      larger_ == smaller_ ? validation_of_smaller_ : run_validation(task, precision, larger);
  interpolate(of_smaller_, of_larger_, 0);  // throws
}

double PassMemory::fraction(int64_t batch) const {
  if (larger_ == smaller_) return 0;
  return static_cast<double>(batch - smaller_) / static_cast<double>(larger_ - smaller_);
}

std::vector<PassPart> PassMemory::parts(int64_t batch) const {
  return interpolate(of_smaller_, of_larger_, fraction(batch));
}

double PassMemory::validation(int64_t batch) const {
  return std::lerp(validation_of_smaller_, validation_of_larger_, fraction(batch));
}

}  // namespace troika::train
