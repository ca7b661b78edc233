#include "troika/train/profile/optimizer_times.h"

#include <vector>

#include "troika/base/clock.h"
#include "troika/compat/torch.h"
#include "troika/optim/optimizer.h"
#include "troika/train/profile/other_memory.h"
#include "troika/train/profile/rank_means.h"
#include "troika/train/profile/robust_spread.h"

namespace troika::train {

OptimizerTimes measure_optimizer(const state::StateDict& trained,
                                 const optim::OptimizerOptions& options, const Placement& placement,
                                 const comm::Group& group) {
  // An optimizer whose states are in files steps float32 masters in the host's memory.
  const bool is_on_host = !options.offload.empty();
  const bool has_masters =
      placement.precision.needs_masters() || (is_on_host && !placement.device.is_cpu());
  OptimizerTimes result;
  std::vector<optim::Parameter> parameters;
  for (const auto& [name, tensor] : trained) {
    const at::Tensor copy = tensor.detach().to(is_on_host ? at::Device(at::kCPU) : tensor.device(),
                                               has_masters ? at::kFloat : tensor.scalar_type(),
                                               /*non_blocking=*/false, /*copy=*/true);
    copy.mutable_grad() = at::zeros_like(copy);
    result.parameter_bytes += static_cast<double>(tensor.nbytes());
    if (has_masters) result.state_bytes += 2 * static_cast<double>(copy.nbytes());
    parameters.push_back({name, copy});
  }
  if (parameters.empty()) return result;
  const auto optimizer = optim::make_optimizer(parameters, options);
  for (const auto& [name, state] : optimizer->state()) {
    result.state_bytes += static_cast<double>(state.nbytes());
  }
  constexpr int kSteps = 9;
  std::vector<double> seconds;
  // In training, the passes of a step leave none of the optimizer's memory in caches.
  OtherMemory others(placement.device);
  optimizer->step();
  for (int i = 0; i < kSteps; ++i) {
    others.fill_caches();
    group.barrier({.label = "rounds of a profile"});
    const Stopwatch watch;
    optimizer->step();
    if (!parameters.front().tensor.is_cpu()) parameters.front().tensor.flatten()[0].item<double>();
    seconds.push_back(watch.seconds());
  }
  result.seconds = mean_over_ranks(robust_spread(seconds).mean, group);
  return result;
}

}  // namespace troika::train
