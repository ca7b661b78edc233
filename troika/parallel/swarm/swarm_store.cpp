#include "troika/parallel/swarm/swarm_store.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/nn/state.h"
#include "troika/swarm/identity.h"

namespace troika::parallel {

std::string SwarmStore::digest_of(const optim::NamedTensors& tensors) {
  std::string digests;
  for (const auto& [name, tensor] : tensors) {
    const auto values = tensor.detach().contiguous();
    digests += name + swarm::digest_of({static_cast<const char*>(values.data_ptr()),
                                        static_cast<size_t>(values.nbytes())});
  }
  return swarm::digest_of(digests);
}

SwarmStore::SwarmStore(torch::nn::Module& module, SwarmMember& member)
    : module_(module), member_(member), parameters_(trained_parameters(module)) {
  for (const auto& [name, buffer] : nn::named_buffers(module)) {
    const bool is_count =
        buffer.scalar_type() == at::kLong && name.ends_with("num_batches_tracked");
    if (buffer.is_floating_point() || is_count) buffers_.emplace_back(name, buffer);
  }
  const auto is_double = [](const at::Tensor& tensor) {
    return tensor.scalar_type() == at::kDouble;
  };
  is_double_ = std::ranges::any_of(parameters_, is_double, &optim::Parameter::tensor) ||
               std::ranges::any_of(buffers_, is_double, &Buffers::value_type::second);
}

std::string SwarmStore::schema() const {
  std::string text;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    text += fmt::format("{} {} {}\n", name, fmt::join(tensor.sizes(), "x"),
                        c10::toString(tensor.scalar_type()));
  };
  for (const auto& parameter : parameters_) add(parameter.name, parameter.tensor);
  for (const auto& [name, buffer] : buffers_) add(name, buffer);
  return text;
}

bool SwarmStore::is_compressed(const at::Tensor& parameter) const {
  const auto& compression = member_.compression();
  return compression.codec != "none" && parameter.numel() >= compression.threshold;
}

bool SwarmStore::begin_step(double weight) {
  throw Error("parallel", ErrorKind::usage,
              {.what = "a weight of a step of a swarm",
               .got = fmt::format("{}", weight),
               .expected = "none: the weight of a peer is its number of samples"});
}

std::vector<std::pair<std::string, double>> SwarmStore::take_statistics() {
  const auto statistics = member_.statistics();
  return {{"swarm_peers", static_cast<double>(statistics.members)},
          {"swarm_steps", static_cast<double>(statistics.steps)},
          {"swarm_whole_steps", static_cast<double>(statistics.whole_steps)},
          {"swarm_lone_steps", static_cast<double>(statistics.lone_steps)},
          {"swarm_loads", static_cast<double>(statistics.loads)}};
}

}  // namespace troika::parallel
