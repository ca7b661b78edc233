#include "troika/parallel/swarm/swarm_exchange.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/nn/state.h"

namespace troika::parallel {

SwarmExchange::SwarmExchange(torch::nn::Module& module, SwarmMember& member)
    : member_(member), parameters_(trained_parameters(module)) {
  for (const auto& [name, buffer] : nn::named_buffers(module)) {
    const bool is_count =
        buffer.scalar_type() == at::kLong && name.ends_with("num_batches_tracked");
    if (buffer.is_floating_point() || is_count) buffers_.emplace_back(name, buffer);
  }
  const auto is_double = [](const at::Tensor& tensor) {
    return tensor.scalar_type() == at::kDouble;
  };
  is_double_ =
      std::ranges::any_of(parameters_, is_double, &optim::Parameter::tensor) ||
      std::ranges::any_of(buffers_, is_double, &std::pair<std::string, at::Tensor>::second);
}

std::string SwarmExchange::schema() const {
  std::string text;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    text += fmt::format("{} {} {}\n", name, fmt::join(tensor.sizes(), "x"),
                        c10::toString(tensor.scalar_type()));
  };
  for (const auto& parameter : parameters_) add(parameter.name, parameter.tensor);
  for (const auto& [name, buffer] : buffers_) add(name, buffer);
  return text;
}

at::Tensor SwarmExchange::gather(double factor) const {
  const at::NoGradGuard no_grad;
  const auto type = at::TensorOptions(is_double_ ? at::kDouble : at::kFloat);
  std::vector<at::Tensor> parts{at::empty({flags()}, type)};
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const auto& tensor = parameters_[i].tensor;
    const auto& gradient = tensor.grad();
    parts.front()[static_cast<int64_t>(i)] = gradient.defined() ? 1 : 0;
    parts.push_back(gradient.defined() ? gradient.to(type.dtype()).reshape({-1}) * factor
                                       : at::zeros({tensor.numel()}, type));
  }
  auto flag = static_cast<int64_t>(parameters_.size());
  for (const auto& [name, buffer] : buffers_) {
    const auto numbers = buffer.to(type.dtype()).reshape({-1});
    const bool is_finite = numbers.isfinite().all().item<bool>();
    parts.front()[flag++] = is_finite ? 1 : 0;
    parts.push_back(is_finite ? numbers : at::zeros_like(numbers));
  }
  return at::cat(parts);
}

void SwarmExchange::spread(const at::Tensor& values) {
  const at::NoGradGuard no_grad;
  const auto flag_of = [&](size_t i) { return values[static_cast<int64_t>(i)].item<double>(); };
  auto first = flags();
  const auto next = [&](const at::Tensor& like) {
    const auto part = values.narrow(0, first, like.numel()).view(like.sizes());
    first += like.numel();
    return part;
  };
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const auto& tensor = parameters_[i].tensor;
    const auto mean = next(tensor);
    auto& gradient = parameters_[i].tensor.mutable_grad();
    if (flag_of(i) <= 0) {
      gradient.reset();
      continue;
    }
    if (!gradient.defined()) gradient = at::empty_like(tensor);
    gradient.copy_(mean);
  }
  for (size_t i = 0; i < buffers_.size(); ++i) {
    const auto& buffer = buffers_[i].second;
    const double share = flag_of(parameters_.size() + i);
    auto mean = next(buffer);
    if (share <= 0) continue;
    // The mean of the peers with finite numbers.
    if (share != 1) mean = mean / share;
    buffer.copy_(buffer.is_floating_point() ? mean : mean.round());
  }
}

bool SwarmExchange::begin_step(double weight) {
  throw Error("parallel", ErrorKind::usage,
              {.what = "a weight of a step of a swarm",
               .got = fmt::format("{}", weight),
               .expected = "none: the weight of a peer is its number of samples"});
}

std::vector<std::pair<std::string, double>> SwarmExchange::take_statistics() {
  const auto statistics = member_.statistics();
  return {{"swarm_peers", static_cast<double>(statistics.members)},
          {"swarm_steps", static_cast<double>(statistics.steps)},
          {"swarm_whole_steps", static_cast<double>(statistics.whole_steps)},
          {"swarm_lone_steps", static_cast<double>(statistics.lone_steps)},
          {"swarm_loads", static_cast<double>(statistics.loads)}};
}

void SwarmExchange::load_state(const optim::NamedTensors& state) {
  if (!state.empty()) refuse_state(state.front().first);
}

}  // namespace troika::parallel
