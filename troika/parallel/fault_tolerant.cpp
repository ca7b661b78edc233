#include "troika/parallel/fault_tolerant.h"

#include <fmt/format.h>

#include <algorithm>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/nn/state.h"
#include "troika/parallel/quorum_statistics.h"

namespace troika::parallel {

FaultTolerant::FaultTolerant(torch::nn::Module& module, quorum::Member& member,
                             const FaultTolerantOptions& options)
    : member_(member), options_(options), parameters_(trained_parameters(module)) {
  for (const auto& [name, buffer] : nn::named_buffers(module)) {
    if (buffer.is_floating_point()) buffers_.push_back(buffer);
  }
  const auto is_double = [](const at::Tensor& tensor) {
    return tensor.scalar_type() == at::kDouble;
  };
  is_double_ = std::ranges::any_of(parameters_, is_double, &optim::Parameter::tensor) ||
               std::ranges::any_of(buffers_, is_double);
}

bool FaultTolerant::begin_step(double weight) {
  throw Error("parallel", ErrorKind::usage,
              {.what = "a weight of a step of FaultTolerant",
               .got = fmt::format("{}", weight),
               .expected = "none: a member's weight is its share of the step"});
}

bool FaultTolerant::set_syncing(bool syncing) {
  return std::exchange(is_syncing_, syncing);
}

void FaultTolerant::finish_backward() {
  TROIKA_CHECK(is_syncing_, "no guard of no_sync() at the end of a step");
  if (is_double_) {
    average<double>();
  } else {
    average<float>();
  }
}

// The summed numbers are, in order: for each parameter whether it has a gradient, the gradients
// times the member's samples, and the buffers, which only one member adds.
template <typename Number>
void FaultTolerant::average() {
  const at::NoGradGuard no_grad;
  constexpr auto kType = std::is_same_v<Number, double> ? at::kDouble : at::kFloat;
  const auto samples = static_cast<double>(member_.share().count);
  std::vector<at::Tensor> gradients;
  size_t size = parameters_.size();
  for (const auto& parameter : parameters_) {
    const auto& gradient = parameter.tensor.grad();
    size += static_cast<size_t>(parameter.tensor.numel());
    gradients.push_back(gradient);
    if (!options_.require_finite || !gradient.defined()) continue;
    if (gradient.isfinite().all().item<bool>()) continue;
    throw Error("parallel", ErrorKind::failure,
                {.what = "this replica's gradient of " + parameter.name + " is not finite",
                 .got = "inf or nan",
                 .expected = "numbers",
                 .hint = "the other replicas go on without its share of the step; "
                         "trainer.terminate_on_nan=false trains on"});
  }
  for (const auto& buffer : buffers_) size += static_cast<size_t>(buffer.numel());
  const auto view = [](Number* at, const at::Tensor& like) {
    return at::from_blob(at, like.sizes(), at::TensorOptions(kType));
  };
  auto sum = member_.sum<Number>(size, [&](std::span<Number> to, bool is_first) {
    const at::NoGradGuard no_grad_in_call;
    Number* at = to.data();
    for (const auto& gradient : gradients) *at++ = gradient.defined() ? 1 : 0;
    for (size_t i = 0; i < gradients.size(); ++i) {
      const auto& tensor = parameters_[i].tensor;
      if (gradients[i].defined()) view(at, tensor).copy_(gradients[i]).mul_(samples);
      at += tensor.numel();
    }
    for (const auto& buffer : buffers_) {
      if (is_first) view(at, buffer).copy_(buffer);
      at += buffer.numel();
    }
  });
  const auto all = static_cast<double>(member_.counted().samples());
  const Number* has = sum.data();
  Number* at = sum.data() + parameters_.size();
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const auto& tensor = parameters_[i].tensor;
    if (has[i] > 0) {
      auto& gradient = parameters_[i].tensor.mutable_grad();
      if (!gradient.defined()) gradient = at::empty_like(tensor);
      gradient.copy_(view(at, tensor).div_(all));
    }
    at += tensor.numel();
  }
  for (const auto& buffer : buffers_) {
    buffer.copy_(view(at, buffer));
    at += buffer.numel();
  }
}

std::vector<std::pair<std::string, double>> FaultTolerant::take_statistics() {
  return quorum_statistics(member_);
}

void FaultTolerant::load_state(const optim::NamedTensors& state) {
  if (!state.empty()) refuse_state(state.front().first);
}

}  // namespace troika::parallel
