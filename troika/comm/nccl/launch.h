// Which collectives NCCL can carry out, and how it is asked to.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "troika/comm/call.h"
#include "troika/compat/c10d_nccl.h"

namespace troika::comm::nccl {

// Decided by what ranks agree on, so that all decide alike. Data that is only moved may be of any
// type.
bool knows(const Call& call);

// Queues work on the device, ordered after what the current stream has queued. Keeps the tensors.
using Launch = std::function<compat::NcclWork(compat::NcclProcessGroup&)>;
Launch launch_of(const Call& call);

// tensor /= divisor, rounded as reduce() does it. Queued on the current stream.
void divide(const at::Tensor& tensor, int divisor);

}  // namespace troika::comm::nccl
