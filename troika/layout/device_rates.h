// The slowness of devices, compared with the one on which a profile was measured.
#pragma once

#include <vector>

#include "troika/layout/cluster.h"

namespace troika::layout {

// Returns for each rank the factor by which passes on its device take longer than measured: the
// rate of the measured device divided by the device's own rate (Devices::flops), or 1 if the
// device's rate is unknown. `reference_flops` is Profile::device_flops; if it is 0, the measured
// device is the fastest one of the cluster.
std::vector<double> device_slowness(const Cluster& cluster, double reference_flops);

}  // namespace troika::layout
