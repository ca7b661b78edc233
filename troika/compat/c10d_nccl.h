// c10d's NCCL as this project uses it. Include only where NCCL is built in: this header needs those
// of CUDA and NCCL, and not those of Gloo, which a LibTorch with CUDA comes without.
//
// CMake finds out whether NCCL is there by compiling this file, so that a LibTorch that lacks what
// is named here counts as one without.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <chrono>
#include <cstdlib>

#include "troika/compat/c10d_store.h"

namespace troika::compat {

using NcclProcessGroup = c10d::ProcessGroupNCCL;
using NcclWork = c10::intrusive_ptr<c10d::Work>;

// Time and failures are the caller's to handle. Without this, threads of c10d end the process when
// a call fails or takes long. c10d is told by environment variables alone, and reads them whenever
// it makes a process group; what the user has set stays.
inline void keep_process_on_nccl_failure() {
  for (const auto* names :
       {&c10d::TORCH_NCCL_ASYNC_ERROR_HANDLING, &c10d::TORCH_NCCL_RETHROW_CUDA_ERRORS,
        &c10d::TORCH_NCCL_ENABLE_MONITORING}) {
    ::setenv(names->front().c_str(), "0", /*overwrite=*/0);
  }
}

// Its own time-out is too long to ever pass. Does not wait for the other ranks.
inline c10::intrusive_ptr<NcclProcessGroup> make_nccl_group(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size) {
  auto options = NcclProcessGroup::Options::create();
  options->timeout = std::chrono::hours(24 * 365);
  return c10::make_intrusive<NcclProcessGroup>(store, rank, size, std::move(options));
}

// Ends what is under way on the device, and makes the group useless. May block.
inline void abort(NcclProcessGroup& group) {
  group.abort();
}

// Ends the group in peace, once its work is done; called by all ranks. May block.
inline void close(NcclProcessGroup& group) {
  group.shutdown();
}

}  // namespace troika::compat
