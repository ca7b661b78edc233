// Random numbers of the pretend device.
#pragma once

#include <ATen/core/Generator.h>

namespace troika::pretend {

// Returns the default generator of a device. It draws the same numbers as the CPU's generator with
// the same state, so that runs can be compared.
const at::Generator& default_generator(int device);
// Returns the CPU generator that a generator of this device contains.
at::Generator cpu_draws_of(const at::Generator& generator);

}  // namespace troika::pretend
