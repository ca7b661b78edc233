// LibTorch's random numbers where a rank computes.
#pragma once

#include <c10/core/Device.h>

#include "troika/train/checkpoint/safetensors.h"

namespace troika::train {

// Of the processor's generator, as "cpu", and of `device`'s, as "cuda", if that is another. Both
// are the whole process's.
NamedTensors random_state(at::Device device);

// Those of them that `state` has go on from there; others are left alone.
void load_random_state(at::Device device, const NamedTensors& state);

}  // namespace troika::train
