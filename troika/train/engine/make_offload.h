// Where a run's activations are between the forward and the backward pass.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <string>

#include "troika/compat/saved_tensors.h"

namespace troika::train {

// Makes the hooks that offload activations (nn/offload.h): to a folder, or with "host" from a GPU
// to the host. Throws Error(usage) if that does not go with the device.
std::shared_ptr<compat::SavedTensorHooks> make_offload(const std::string& to,
                                                       const at::Device& device);

}  // namespace troika::train
