#include "troika/parallel/swarm/swarm_exchange.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/nn/state.h"
#include "troika/swarm/identity.h"

namespace troika::parallel {

namespace {

// The prefix of a delayed mean in state().
constexpr const char* kDelayed = "delayed.";

}  // namespace

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

bool SwarmExchange::is_compressed(const at::Tensor& parameter) const {
  const auto& compression = member_.compression();
  return compression.codec != "none" && parameter.numel() >= compression.threshold;
}

size_t SwarmExchange::exact() const {
  auto count = flags();
  for (const auto& parameter : parameters_) {
    if (!is_compressed(parameter.tensor)) count += parameter.tensor.numel();
  }
  for (const auto& [name, buffer] : buffers_) count += buffer.numel();
  return static_cast<size_t>(count);
}

size_t SwarmExchange::size() const {
  auto count = static_cast<int64_t>(exact());
  for (const auto& parameter : parameters_) {
    if (is_compressed(parameter.tensor)) count += parameter.tensor.numel();
  }
  return static_cast<size_t>(count);
}

at::Tensor SwarmExchange::gather(double factor) const {
  const at::NoGradGuard no_grad;
  const auto type = at::TensorOptions(is_double_ ? at::kDouble : at::kFloat);
  std::vector<at::Tensor> parts{at::empty({flags()}, type)};
  std::vector<at::Tensor> compressed;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const auto& tensor = parameters_[i].tensor;
    const auto& gradient = tensor.grad();
    parts.front()[static_cast<int64_t>(i)] = gradient.defined() ? 1 : 0;
    (is_compressed(tensor) ? compressed : parts)
        .push_back(gradient.defined() ? gradient.to(type.dtype()).reshape({-1}) * factor
                                      : at::zeros({tensor.numel()}, type));
  }
  auto flag = static_cast<int64_t>(parameters_.size());
  for (const auto& [name, buffer] : buffers_) {
    const auto numbers = buffer.to(type.dtype()).reshape({-1});
    const bool is_finite = numbers.isfinite().all().item<bool>();
    parts.front()[flag++] = is_finite ? 1 : 0;
    parts.push_back(is_finite ? numbers : at::zeros_like(numbers));
  }
  parts.insert(parts.end(), compressed.begin(), compressed.end());
  return at::cat(parts);
}

std::vector<SwarmExchange::Part> SwarmExchange::parts_of(const at::Tensor& values) const {
  auto first = flags(), first_compressed = static_cast<int64_t>(exact());
  std::vector<Part> parts;
  const auto add = [&](const std::string& name, const at::Tensor& like, int64_t& at) {
    parts.push_back({.name = name,
                     .mean = values.narrow(0, at, like.numel()).view(like.sizes()),
                     .share = values[static_cast<int64_t>(parts.size())]});
    at += like.numel();
  };
  for (const auto& parameter : parameters_) {
    add("gradient." + parameter.name, parameter.tensor,
        is_compressed(parameter.tensor) ? first_compressed : first);
  }
  for (const auto& [name, buffer] : buffers_) add("buffer." + name, buffer, first);
  return parts;
}

void SwarmExchange::spread(const at::Tensor& values) {
  const at::NoGradGuard no_grad;
  const auto parts = parts_of(values);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const auto& tensor = parameters_[i].tensor;
    auto& gradient = parameters_[i].tensor.mutable_grad();
    if (parts[i].share.item<double>() <= 0) {
      gradient.reset();
      continue;
    }
    if (!gradient.defined()) gradient = at::empty_like(tensor);
    gradient.copy_(parts[i].mean);
  }
  for (size_t i = 0; i < buffers_.size(); ++i) {
    const auto& buffer = buffers_[i].second;
    const auto& part = parts[parameters_.size() + i];
    const double share = part.share.item<double>();
    if (share <= 0) continue;
    // The mean of the peers with finite numbers.
    const auto mean = share == 1 ? part.mean : part.mean / share;
    buffer.copy_(buffer.is_floating_point() ? mean : mean.round());
  }
}

std::string SwarmExchange::delayed_digest() const {
  if (!delayed_) return {};
  const auto values = delayed_->contiguous();
  return swarm::digest_of(
      {static_cast<const char*>(values.data_ptr()), static_cast<size_t>(values.nbytes())});
}

void SwarmExchange::begin_average(at::Tensor values, double weight) {
  member_.contribute(values, weight);
  given_ = std::move(values);
  is_averaging_ = true;
  keep_begun();
}

void SwarmExchange::keep_begun() {
  begun_.clear();
  for (const auto& [name, buffer] : buffers_) begun_.push_back(buffer.detach().clone());
}

SwarmMember::Outcome SwarmExchange::end_average(const SwarmMember::Stops& stops) {
  const auto outcome = member_.finish(given_, stops);
  if (outcome == SwarmMember::Outcome::stopped) return outcome;
  is_averaging_ = false;
  const auto values = std::exchange(given_, {});
  if (outcome == SwarmMember::Outcome::averaged) delayed_ = values;
  return outcome;
}

void SwarmExchange::fetch_states() {
  if (is_averaging_) end_average([] { return false; });
}

std::vector<at::Tensor> SwarmExchange::take_gradients() {
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : parameters_) {
    gradients.push_back(std::exchange(parameter.tensor.mutable_grad(), {}));
  }
  return gradients;
}

void SwarmExchange::put_gradients(const std::vector<at::Tensor>& gradients) {
  for (size_t i = 0; i < gradients.size(); ++i) {
    parameters_[i].tensor.mutable_grad() = gradients[i];
  }
}

std::vector<at::Tensor> SwarmExchange::changes_of_buffers() const {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> changes;
  for (size_t i = 0; i < begun_.size(); ++i) {
    const auto change = buffers_[i].second - begun_[i];
    changes.push_back(at::where(change.isfinite(), change, at::zeros_like(change)));
  }
  return changes;
}

void SwarmExchange::add_to_buffers(const std::vector<at::Tensor>& changes) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < changes.size(); ++i) buffers_[i].second.add_(changes[i]);
}

void SwarmExchange::go_on_with_buffers() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < begun_.size(); ++i) buffers_[i].second.copy_(begun_[i]);
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

optim::NamedTensors SwarmExchange::state() const {
  optim::NamedTensors state;
  if (!delayed_) return state;
  const at::NoGradGuard no_grad;
  const auto parts = parts_of(*delayed_);
  for (size_t i = 0; i < parts.size(); ++i) {
    const double share = parts[i].share.item<double>();
    if (share <= 0) continue;
    // As spread() takes them.
    const bool is_gradient = i < parameters_.size();
    state.emplace_back(kDelayed + parts[i].name,
                       is_gradient || share == 1 ? parts[i].mean : parts[i].mean / share);
  }
  return state;
}

void SwarmExchange::load_state(const optim::NamedTensors& state) {
  const at::NoGradGuard no_grad;
  is_averaging_ = false;
  given_.reset();
  delayed_.reset();
  keep_begun();
  if (state.empty()) return;
  const auto values = at::zeros({static_cast<int64_t>(size())},
                                at::TensorOptions(is_double_ ? at::kDouble : at::kFloat));
  const auto parts = parts_of(values);
  for (const auto& [name, tensor] : state) {
    const auto part =
        std::ranges::find_if(parts, [&](const Part& one) { return name == kDelayed + one.name; });
    if (!member_.delays() || part == parts.end() || part->mean.sizes() != tensor.sizes()) {
      refuse_state(name);
    }
    part->mean.copy_(tensor);
    part->share.fill_(1);
  }
  delayed_ = values;
}

}  // namespace troika::parallel
