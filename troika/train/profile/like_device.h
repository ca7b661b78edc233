// Scales a profile to another device.
#pragma once

#include <vector>

#include "troika/layout/profile.h"
#include "troika/train/engine/block_times.h"

namespace troika::train {

struct DeviceRates {
  double flops = 0;      // per second
  double bandwidth = 0;  // of memory, in bytes per second
};

// Multiplies the times of each pass by the ratio of its bounds on both devices (Williams, Waterman
// and Patterson, "Roofline", CACM 52(4), 2009). So a pass is as far from its bound on the other
// device as on the measured one. The bound is, for each product, the longer of computing it and
// moving its bytes; all other operators write and read the bytes that the block saves. Also scales
// the optimizer, which moves bytes, and sets Profile::device_flops. `products` are those of the
// profile's blocks. Links stay.
void scale_to(layout::Profile& profile, const std::vector<BlockProducts>& products,
              const DeviceRates& measured, const DeviceRates& other);

}  // namespace troika::train
