// NCCL beside another back end: collectives on tensors in CUDA memory go from device to device.
// NCCL is no world of its own: messages, agreement, and whatever it does not have stay with the
// host's back end.
#pragma once

#include <memory>

#include "troika/comm/group_impl.h"

namespace troika::comm::nccl {

// A group of the same ranks, named "<host>+nccl", whose calls on CUDA tensors are carried out by
// NCCL, as are those of the groups split from it. NCCL carries out broadcast; all_gather in even
// blocks; and, for the floating-point and integer types other than int16, reduce, reduce_scatter in
// even blocks, and all_reduce by no algorithm in particular. The rest goes over the host. Results
// are rounded as on the host.
//
// Returns `host` itself where this build has no NCCL or this rank sees no CUDA device; calls on
// CUDA tensors then go over the host. Tensors of one call must be in CUDA memory on all ranks or on
// none.
//
// A group's ranks connect at its first call on CUDA tensors. Each rank must keep to one device, and
// have it for itself. Calls start after what the current stream has queued, and return when they
// are done on the device.
std::shared_ptr<GroupImpl> beside(std::shared_ptr<GroupImpl> host);

}  // namespace troika::comm::nccl
