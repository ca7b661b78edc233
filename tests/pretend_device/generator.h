// Random numbers of the pretend device.
#pragma once

#include <ATen/core/Generator.h>

namespace troika::pretend {

// The default generator of a device. It draws what the CPU's generator of the same state draws, so
// that runs can be compared.
const at::Generator& default_generator(int device);
// The CPU's generator inside of one of this device.
at::Generator cpu_draws_of(const at::Generator& generator);

}  // namespace troika::pretend
