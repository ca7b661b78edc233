#include "troika/train/random_state.h"

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

}  // namespace troika::train
