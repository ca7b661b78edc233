// LibTorch's random numbers where a rank computes.
#pragma once

#include <c10/core/Device.h>

#include "troika/checkpoint/safetensors.h"

namespace troika::train {

// States of the CPU's generator, as "cpu", and of `device`'s if it is another, as "cuda" or what
// LibTorch calls its type. Both are the whole process's.
checkpoint::NamedTensors random_state(at::Device device);

// Sets the generators that `state` has a state for; the others are left alone.
void load_random_state(at::Device device, const checkpoint::NamedTensors& state);

}  // namespace troika::train
