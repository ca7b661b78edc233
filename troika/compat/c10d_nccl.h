// The parts of c10d's NCCL that this project uses. Include only if NCCL is built in: this header
// needs the headers of CUDA and NCCL. It does not need Gloo's, which a LibTorch with CUDA lacks.
//
// CMake detects NCCL by compiling this file, so a LibTorch that lacks a name used here counts as
// one without NCCL.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <chrono>
#include <cstdlib>

#include "troika/compat/c10d_store.h"

namespace troika::compat {

using NcclProcessGroup = c10d::ProcessGroupNCCL;
using NcclWork = c10::intrusive_ptr<c10d::Work>;

// The caller handles timeouts and failures. Without these settings, threads of c10d end the process
// when a call fails or takes long. c10d is configured only by environment variables, which it reads
// whenever it makes a process group. Values that the user has set are kept.
inline void keep_process_on_nccl_failure() {
  for (const auto* names :
       {&c10d::TORCH_NCCL_ASYNC_ERROR_HANDLING, &c10d::TORCH_NCCL_RETHROW_CUDA_ERRORS,
        &c10d::TORCH_NCCL_ENABLE_MONITORING}) {
    ::setenv(names->front().c_str(), "0", /*overwrite=*/0);
  }
}

// Makes a process group whose own timeout is too long to ever expire. Does not wait for the other
// ranks.
inline c10::intrusive_ptr<NcclProcessGroup> make_nccl_group(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size) {
  auto options = NcclProcessGroup::Options::create();
  options->timeout = std::chrono::hours(24 * 365);
  return c10::make_intrusive<NcclProcessGroup>(store, rank, size, std::move(options));
}

// Ends the work in flight on the device, and makes the group unusable. May block.
inline void abort(NcclProcessGroup& group) {
  group.abort();
}

// Shuts the group down after its work is done. Collective. May block.
inline void close(NcclProcessGroup& group) {
  group.shutdown();
}

}  // namespace troika::compat
