// The activations that offload leaves in memory.
#pragma once

#include <cstdint>

#include "troika/data/dataset.h"
#include "troika/train/options/options.h"

namespace troika::train {

// Returns the bytes of the tensors that the blocks of the configured model save in a forward pass
// of `samples` samples, and that nn::ActivationOffload keeps in memory because they are small. Full
// recomputation saves the blocks' inputs alone. Runs two small forward passes on tensors without
// memory, in the precision of the options; the sizes for other numbers of samples follow from
// these. Needs no other thread that makes tensors.
double kept_bytes(const TrainOptions& options, const data::Dataset& dataset, int64_t samples,
                  bool recomputes);

}  // namespace troika::train
