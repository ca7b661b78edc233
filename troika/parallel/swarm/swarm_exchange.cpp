#include "troika/parallel/swarm/swarm_exchange.h"

#include <algorithm>

#include "troika/compat/torch.h"
#include "troika/nn/state.h"

namespace troika::parallel {

namespace {

// The prefix of a delayed mean in state().
constexpr const char* kDelayed = "delayed.";

}  // namespace

size_t SwarmExchange::exact() const {
  auto count = flags();
  for (const auto& parameter : trained()) {
    if (!is_compressed(parameter.tensor)) count += parameter.tensor.numel();
  }
  for (const auto& [name, buffer] : buffers()) count += buffer.numel();
  return static_cast<size_t>(count);
}

size_t SwarmExchange::size() const {
  auto count = static_cast<int64_t>(exact());
  for (const auto& parameter : trained()) {
    if (is_compressed(parameter.tensor)) count += parameter.tensor.numel();
  }
  return static_cast<size_t>(count);
}

at::Tensor SwarmExchange::gather(double factor) const {
  const at::NoGradGuard no_grad;
  const auto type = this->type();
  std::vector<at::Tensor> parts{at::empty({flags()}, type)};
  std::vector<at::Tensor> compressed;
  for (size_t i = 0; i < trained().size(); ++i) {
    const auto& tensor = trained()[i].tensor;
    const auto& gradient = tensor.grad();
    parts.front()[static_cast<int64_t>(i)] = gradient.defined() ? 1 : 0;
    (is_compressed(tensor) ? compressed : parts)
        .push_back(gradient.defined() ? gradient.to(type.dtype()).reshape({-1}) * factor
                                      : at::zeros({tensor.numel()}, type));
  }
  auto flag = static_cast<int64_t>(trained().size());
  for (const auto& [name, buffer] : buffers()) {
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
  for (const auto& parameter : trained()) {
    add("gradient." + parameter.name, parameter.tensor,
        is_compressed(parameter.tensor) ? first_compressed : first);
  }
  for (const auto& [name, buffer] : buffers()) add("buffer." + name, buffer, first);
  return parts;
}

void SwarmExchange::spread(const at::Tensor& values) {
  const at::NoGradGuard no_grad;
  const auto parts = parts_of(values);
  for (size_t i = 0; i < trained().size(); ++i) {
    const auto& tensor = trained()[i].tensor;
    auto& gradient = trained()[i].tensor.mutable_grad();
    if (parts[i].share.item<double>() <= 0) {
      gradient.reset();
      continue;
    }
    if (!gradient.defined()) gradient = at::empty_like(tensor);
    gradient.copy_(parts[i].mean);
  }
  for (size_t i = 0; i < buffers().size(); ++i) {
    const auto& buffer = buffers()[i].second;
    const auto& part = parts[trained().size() + i];
    const double share = part.share.item<double>();
    if (share <= 0) continue;
    // The mean of the peers with finite numbers.
    const auto mean = share == 1 ? part.mean : part.mean / share;
    buffer.copy_(buffer.is_floating_point() ? mean : mean.round());
  }
}

std::string SwarmExchange::digest() const {
  auto tensors = nn::named_state(module());
  if (delayed_) tensors.emplace_back(kDelayed, *delayed_);
  return digest_of(tensors);
}

void SwarmExchange::begin_average(at::Tensor values, double weight) {
  member().contribute(values, weight);
  given_ = std::move(values);
  is_averaging_ = true;
  keep_begun();
}

void SwarmExchange::keep_begun() {
  begun_.clear();
  for (const auto& [name, buffer] : buffers()) begun_.push_back(buffer.detach().clone());
}

SwarmMember::Outcome SwarmExchange::end_average(const SwarmMember::Stops& stops) {
  const auto outcome = member().finish(given_, stops);
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
  for (const auto& parameter : trained()) {
    gradients.push_back(std::exchange(parameter.tensor.mutable_grad(), {}));
  }
  return gradients;
}

void SwarmExchange::put_gradients(const std::vector<at::Tensor>& gradients) {
  for (size_t i = 0; i < gradients.size(); ++i) {
    trained()[i].tensor.mutable_grad() = gradients[i];
  }
}

std::vector<at::Tensor> SwarmExchange::changes_of_buffers() const {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> changes;
  for (size_t i = 0; i < begun_.size(); ++i) {
    const auto change = buffers()[i].second - begun_[i];
    changes.push_back(at::where(change.isfinite(), change, at::zeros_like(change)));
  }
  return changes;
}

void SwarmExchange::add_to_buffers(const std::vector<at::Tensor>& changes) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < changes.size(); ++i) buffers()[i].second.add_(changes[i]);
}

void SwarmExchange::go_on_with_buffers() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < begun_.size(); ++i) buffers()[i].second.copy_(begun_[i]);
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
    const bool is_gradient = i < trained().size();
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
  const auto values = at::zeros({static_cast<int64_t>(size())}, type());
  const auto parts = parts_of(values);
  for (const auto& [name, tensor] : state) {
    const auto part =
        std::ranges::find_if(parts, [&](const Part& one) { return name == kDelayed + one.name; });
    if (!member().delays() || part == parts.end() || part->mean.sizes() != tensor.sizes()) {
      refuse_state(name);
    }
    part->mean.copy_(tensor);
    part->share.fill_(1);
  }
  delayed_ = values;
}

}  // namespace troika::parallel
