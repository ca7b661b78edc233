// NCCL in addition to another back end: collectives on tensors in CUDA memory go from device to
// device. NCCL makes no world of its own: messages, agreement and unsupported operations stay with
// the host's back end.
#pragma once

#include <memory>

#include "troika/comm/messages/group_impl.h"

namespace troika::comm::nccl {

// Returns a group of the same ranks, named "<host>+nccl", whose calls on CUDA tensors are carried
// out by NCCL; so are the calls of groups split from it. NCCL carries out broadcast; all_gather
// with even blocks; and, for floating-point and integer types other than int16, reduce,
// reduce_scatter with even blocks, and all_reduce without a chosen algorithm. Other calls go over
// the host. Results are rounded as on the host.
//
// Returns `host` itself if this build has no NCCL or this rank sees no CUDA device; calls on CUDA
// tensors then go over the host. The tensors of one call must be in CUDA memory on all ranks or on
// none.
//
// The ranks of a group connect at its first call on CUDA tensors. Each rank must keep to one device
// and not share it. Calls are ordered after the work on the current stream, and return when they
// are queued there; the host does not wait for the device.
std::shared_ptr<GroupImpl> beside(std::shared_ptr<GroupImpl> host);

}  // namespace troika::comm::nccl
