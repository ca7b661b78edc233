#include "troika/layout/device_rates.h"

#include <algorithm>

namespace troika::layout {

std::vector<double> device_slowness(const Cluster& cluster, double reference_flops) {
  double reference = reference_flops;
  for (const auto& row : cluster.devices) {
    if (reference_flops == 0) reference = std::max(reference, row.flops);
  }
  std::vector<double> factors;
  for (const auto& row : cluster.devices) {
    factors.insert(factors.end(), static_cast<size_t>(row.count),
                   row.flops > 0 && reference > 0 ? reference / row.flops : 1);
  }
  return factors;
}

}  // namespace troika::layout
