#include "troika/train/profile/like_device.h"

#include <algorithm>

namespace troika::train {

namespace {

double bound(const std::vector<BlockProducts::Product>& products, double saved_bytes,
             const DeviceRates& device) {
  double seconds = 2 * saved_bytes / device.bandwidth;
  for (const auto& product : products) {
    seconds += std::max(product.flops / device.flops, product.bytes / device.bandwidth);
  }
  return seconds;
}

}  // namespace

void scale_to(layout::Profile& profile, const std::vector<BlockProducts>& products,
              const DeviceRates& measured, const DeviceRates& other) {
  const double by_memory = measured.bandwidth / other.bandwidth;
  for (size_t i = 0; i < profile.blocks.size(); ++i) {
    auto& block = profile.blocks[i];
    const auto ratio = [&](const std::vector<BlockProducts::Product>& of_pass) {
      const double here = bound(of_pass, block.saved_bytes, measured);
      return here > 0 ? bound(of_pass, block.saved_bytes, other) / here : by_memory;
    };
    block.forward *= ratio(products[i].forward);
    const double backward = ratio(products[i].backward);
    block.backward_input *= backward;
    block.backward_weight *= backward;
  }
  profile.optimizer_bytes_per_second /= by_memory;
  profile.device_flops = other.flops;
}

}  // namespace troika::train
