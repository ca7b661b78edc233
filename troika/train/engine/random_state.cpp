#include "troika/train/engine/random_state.h"
#include "troika/base/random.h"
#include "troika/comm/group.h"
#include "troika/compat/accelerator.h"
#include "troika/compat/torch.h"
#include "troika/train/options/options.h"

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "troika/compat/accelerator.h"

namespace troika::train {

namespace {

std::vector<std::pair<std::string, at::Generator>> generators(at::Device device) {
  std::vector<std::pair<std::string, at::Generator>> result;
  const auto add = [&](at::Device of) {
    result.emplace_back(c10::DeviceTypeName(of.type(), /*lower_case=*/true),
                        compat::default_generator(of));
  };
  add(at::kCPU);
  if (!device.is_cpu()) add(device);
  return result;
}

}  // namespace

checkpoint::NamedTensors random_state(at::Device device) {
  checkpoint::NamedTensors result;
  for (auto& [name, generator] : generators(device)) {
    const std::lock_guard lock(generator.mutex());
    result.emplace_back(name, generator.get_state());
  }
  return result;
}

void load_random_state(at::Device device, const checkpoint::NamedTensors& state) {
  for (auto& [name, generator] : generators(device)) {
    const std::lock_guard lock(generator.mutex());
    for (const auto& [saved, tensor] : state) {
      if (saved == name) generator.set_state(tensor);
    }
  }
}

void seed_everything(const TrainOptions& options, const comm::Group& replicas) {
  at::globalContext().setDeterministicAlgorithms(options.trainer.deterministic,
                                                 /*warn_only=*/false);
  compat::manual_seed(
      mix(static_cast<uint64_t>(options.run.seed), static_cast<uint64_t>(replicas.rank()) + 1));
}

}  // namespace troika::train
