#include "troika/parallel/swarm/local_updates.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/nn/state.h"

namespace troika::parallel {

namespace {

constexpr const char* kSamples = "samples";

}  // namespace

LocalUpdates::LocalUpdates(torch::nn::Module& module, SwarmMember& member,
                           const LocalUpdatesOptions& options)
    : SwarmStore(module, member),
      options_(options),
      outer_(module, options.outer),
      samples_(static_cast<size_t>(outer_.count()), 0) {
  int64_t most = 0;
  for (int64_t fragment = 0; fragment < outer_.count(); ++fragment) {
    most = std::max(most, count(outer_.changes(fragment), /*are_compressed=*/false));
  }
  auto exact = flags() + most;
  for (const auto& buffer : outer_.buffers()) exact += buffer.numel();
  exact_ = static_cast<size_t>(exact);
}

int64_t LocalUpdates::count(const std::vector<at::Tensor>& changes, bool are_compressed) const {
  int64_t numbers = 0;
  for (const auto& change : changes) {
    if (is_compressed(change) == are_compressed) numbers += change.numel();
  }
  return numbers;
}

bool LocalUpdates::compresses() const {
  return std::ranges::any_of(
      trained(), [this](const auto& parameter) { return is_compressed(parameter.tensor); });
}

std::string LocalUpdates::schema() const {
  return SwarmStore::schema() + fmt::format("{} fragments\n", outer_.count());
}

std::string LocalUpdates::digest() const {
  auto tensors = nn::named_state(module());
  std::erase_if(tensors, [](const auto& entry) { return !entry.second.is_floating_point(); });
  for (auto& entry : outer_.optimizer_state()) tensors.push_back(std::move(entry));
  return digest_of(tensors);
}

void LocalUpdates::join() {
  outer_.adopt();
  std::ranges::fill(samples_, 0);
}

void LocalUpdates::add_samples(int64_t samples) {
  for (auto& own : samples_) own += samples;
}

LocalUpdates::Parts LocalUpdates::places_in(const at::Tensor& values, const Parts& like) const {
  int64_t first = flags();
  auto first_compressed = static_cast<int64_t>(exact_);
  const auto place = [&](const at::Tensor& tensor, int64_t& at) {
    const auto view = values.narrow(0, at, tensor.numel()).view(tensor.sizes());
    at += tensor.numel();
    return view;
  };
  Parts places;
  for (const auto& buffer : like.buffers) places.buffers.push_back(place(buffer, first));
  for (const auto& change : like.changes) {
    places.changes.push_back(place(change, is_compressed(change) ? first_compressed : first));
  }
  return places;
}

at::Tensor LocalUpdates::gather(const Parts& parts) const {
  const auto size = static_cast<int64_t>(exact_) + count(parts.changes, /*are_compressed=*/true);
  const auto values = at::zeros({size}, type());
  const auto places = places_in(values, parts);
  for (size_t i = 0; i < parts.changes.size(); ++i) places.changes[i].copy_(parts.changes[i]);
  for (size_t i = 0; i < parts.buffers.size(); ++i) {
    if (!parts.buffers[i].isfinite().all().item<bool>()) continue;
    values[static_cast<int64_t>(i)] = 1;
    places.buffers[i].copy_(parts.buffers[i]);
  }
  return values;
}

void LocalUpdates::send(int64_t step) {
  const at::NoGradGuard no_grad;
  outer_.hide();
  const int64_t fragment = step % outer_.count();
  Sent sent{.fragment = fragment,
            .parts = {.changes = outer_.changes(fragment), .buffers = outer_.buffers()},
            .samples = samples_.at(static_cast<size_t>(fragment))};
  sent.values = gather(sent.parts);
  if (!sent.values.isfinite().all().item<bool>()) {
    throw Error("parallel", ErrorKind::failure,
                {.what = "this peer's weights are not finite",
                 .got = "inf or nan",
                 .expected = "numbers",
                 .hint = "the other peers go on without it"});
  }
  member().contribute(sent.values, static_cast<double>(sent.samples));
  sent_ = std::move(sent);
}

SwarmMember::Outcome LocalUpdates::finish(const SwarmMember::Stops& stops) {
  const at::NoGradGuard no_grad;
  auto sent = *std::exchange(sent_, std::nullopt);
  SwarmMember::Outcome outcome{};
  {
    const TraceSpan span(options_.trace, "communication", "outer step");
    outcome = member().finish(sent.values, stops);
  }
  if (outcome != SwarmMember::Outcome::averaged) return outcome;
  auto& [changes, buffers] = sent.parts;
  const auto means = places_in(sent.values, sent.parts);
  for (size_t i = 0; i < changes.size(); ++i) changes[i].copy_(means.changes[i]);
  for (size_t i = 0; i < buffers.size(); ++i) {
    // The mean is that of the peers with finite numbers.
    const double share = sent.values[static_cast<int64_t>(i)].item<double>();
    if (share > 0) buffers[i].copy_(share == 1 ? means.buffers[i] : means.buffers[i] / share);
  }
  outer_.hide();
  outer_.step(sent.fragment, changes, buffers);
  samples_.at(static_cast<size_t>(sent.fragment)) -= sent.samples;
  return outcome;
}

void LocalUpdates::step_by(const std::function<void()>& update) {
  if (outer_.is_shown()) {
    throw Error("parallel", ErrorKind::usage,
                {.what = "a step of the outer weights",
                 .got = "no begin_training() after synchronize_replicas()",
                 .expected = "begin_training() before the forward pass"});
  }
  update();
}

optim::NamedTensors LocalUpdates::state() const {
  optim::NamedTensors result{{kSamples, at::tensor(samples_, at::kLong)}};
  for (auto& entry : outer_.state()) result.push_back(std::move(entry));
  return result;
}

void LocalUpdates::load_state(const optim::NamedTensors& state) {
  std::map<std::string, at::Tensor> rest(state.begin(), state.end());
  const auto samples = rest.extract(kSamples);
  if (samples.empty()) refuse_state(std::string("no ") + kSamples);
  if (samples.mapped().sizes() != at::IntArrayRef{outer_.count()}) refuse_state(kSamples);
  const auto problem = outer_.load_state(rest);
  if (!problem.empty()) refuse_state(problem);
  if (!rest.empty()) refuse_state(rest.begin()->first);
  const auto numbers = samples.mapped().to(at::kLong).contiguous();
  samples_.assign(numbers.data_ptr<int64_t>(), numbers.data_ptr<int64_t>() + numbers.numel());
  sent_.reset();
}

}  // namespace troika::parallel
