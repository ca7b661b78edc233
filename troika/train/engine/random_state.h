// The states of LibTorch's random generators on a rank.
#pragma once

#include <c10/core/Device.h>

#include "troika/checkpoint/safetensors.h"

namespace troika::comm {
class Group;
}

namespace troika::train {

struct TrainOptions;

// Returns the state of the CPU's generator as "cpu", and that of `device`'s generator, if
// different, under LibTorch's name of the device type, such as "cuda". Both generators belong to
// the whole process.
checkpoint::NamedTensors random_state(at::Device device);

// Sets the generators that have a state in `state`; leaves the others unchanged.
void load_random_state(at::Device device, const checkpoint::NamedTensors& state);

// Seeds the random generators of this process from run.seed and the rank in `replicas`. Selects
// LibTorch's deterministic algorithms if trainer.deterministic is set.
void seed_everything(const TrainOptions& options, const comm::Group& replicas);

}  // namespace troika::train
