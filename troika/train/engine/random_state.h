// LibTorch's random numbers where a rank computes.
#pragma once

#include <c10/core/Device.h>

#include "troika/checkpoint/safetensors.h"

namespace troika::comm {
class Group;
}

namespace troika::train {

struct TrainOptions;

// States of the CPU's generator, as "cpu", and of `device`'s if it is another, as "cuda" or what
// LibTorch calls its type. Both are the whole process's.
checkpoint::NamedTensors random_state(at::Device device);

// Sets the generators that `state` has a state for; the others are left alone.
void load_random_state(at::Device device, const checkpoint::NamedTensors& state);

// Seeds the random generators of this process from run.seed and the rank among the replicas, and
// selects LibTorch's deterministic algorithms as trainer.deterministic says.
void seed_everything(const TrainOptions& options, const comm::Group& replicas);

}  // namespace troika::train
