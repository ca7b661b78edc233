// The collectives that NCCL can carry out, and how they are launched.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "troika/comm/call/call.h"
#include "troika/compat/c10d_nccl.h"

namespace troika::comm::nccl {

// Whether NCCL can carry the call out. Depends only on facts that ranks agree on, so that all ranks
// decide alike. Operations that only move data accept any dtype.
bool knows(const Call& call);

// Queues the call on the device, ordered after the work on the current stream. Keeps the tensors
// alive.
using Launch = std::function<compat::NcclWork(compat::NcclProcessGroup&)>;
Launch launch_of(const Call& call);

// tensor /= divisor, rounded as in reduce(). Queued on the current stream.
void divide(const at::Tensor& tensor, int divisor);

}  // namespace troika::comm::nccl
