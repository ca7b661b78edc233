#include "troika/train/engine/sandblaster_engine.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/data/dataset.h"
#include "troika/nn/state.h"
#include "troika/observe/step_times.h"
#include "troika/train/options/options.h"
#include "troika/train/task/step_error.h"
#include "troika/train/task/task.h"

namespace troika::train {

namespace {

std::vector<at::Tensor> copies(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  for (const auto& tensor : tensors) result.push_back(tensor.detach().clone());
  return result;
}

bool is_same(const at::Tensor& a, const at::Tensor& b) {
  return at::allclose(a, b, /*rtol=*/0, /*atol=*/0, /*equal_nan=*/true);
}

[[noreturn]] void refuse(const layout::Plan& plan, const std::string& got,
                         const std::string& expected) {
  throw Error("train", ErrorKind::usage,
              {.what = "strategy " + plan.strategy +
                       " needs a loss that depends on samples and parameters alone",
               .got = got,
               .expected = expected});
}

}  // namespace

SandblasterEngine::SandblasterEngine(const EngineSetup& setup)
    : SingleStageEngine(setup),
      sandblaster_(dynamic_cast<parallel::Sandblaster&>(exchange())),
      samples_(setup.training->size()),
      most_(setup.global_batch) {}

data::Batch SandblasterEngine::load(int64_t begin, int64_t end) const {
  std::vector<int64_t> indices(static_cast<size_t>(end - begin));
  std::iota(indices.begin(), indices.end(), begin);
  auto batch = setup().training->load(indices, std::nullopt);
  if (batch.samples.empty()) batch.samples = std::move(indices);
  return placement().place(batch);
}

void SandblasterEngine::require_function() {
  auto& task = setup().task;
  const at::NoGradGuard no_grad;
  const auto batch = load(0, std::min(samples_, most_));
  const auto before = copies(task.module().buffers());
  const auto first = task.training_step(batch).detach().clone();
  const auto second = task.training_step(batch).detach();
  const auto after = task.module().buffers();
  for (size_t i = 0; i < before.size(); ++i) {
    if (is_same(before[i], after[i])) continue;
    refuse(setup().plan, "buffers that change in a forward pass, as those of batch norms do",
           "a model without them, for example with group norms");
  }
  if (!is_same(first, second)) {
    refuse(setup().plan, "two losses of the same samples, as with dropout",
           "no dropout and no other random numbers");
  }
}

std::optional<double> SandblasterEngine::compute(const parallel::PortionWork& work) {
  auto& task = setup().task;
  const auto portions = static_cast<int64_t>(work.portions);
  const auto portion = static_cast<int64_t>(work.portion);
  const int64_t end = (portion + 1) * samples_ / portions;
  double loss = 0;
  for (int64_t begin = portion * samples_ / portions; begin < end; begin += most_) {
    if (!work.is_wanted()) return std::nullopt;
    const int64_t next = std::min(begin + most_, end);
    const double share = static_cast<double>(next - begin) / static_cast<double>(samples_);
    task.module().zero_grad(/*set_to_none=*/true);
    const auto mean = task.training_step(load(begin, next));
    mean.backward();
    loss += mean.item<double>() * share;
    int64_t first = 0;
    for (const auto& parameter : sandblaster_.parameters()) {
      const auto& tensor = parameter.tensor;
      const auto& gradient = tensor.grad();
      const auto part = work.gradient.narrow(0, first, tensor.numel()).view(tensor.sizes());
      if (gradient.defined()) part.add_(gradient.to(at::kDouble), share);
      first += tensor.numel();
    }
  }
  return loss;
}

StepResult SandblasterEngine::step(MicroBatches& batches) {
  StepResult result;
  if (!batches.next()) return result;
  const auto numbers = with_plain_errors("training_step", [&] {
    if (!std::exchange(is_checked_, true)) require_function();
    setup().before_step();
    return sandblaster_.iterate([this](const auto& work) { return compute(work); });
  });
  setup().times.end(observe::Phase::optimizer);
  const auto outcome = static_cast<server::LbfgsOutcome>(static_cast<int>(numbers.outcome));
  if (outcome == server::LbfgsOutcome::converged) {
    result.why_last =
        "L-BFGS has converged: no element of the gradient is above "
        "sandblaster.tolerance";
  } else if (outcome == server::LbfgsOutcome::stuck) {
    result.why_last = "L-BFGS finds no lower value along the negative gradient";
  }
  batches.done(at::scalar_tensor(numbers.value, at::kDouble));
  result.is_complete = true;
  return result;
}

}  // namespace troika::train
