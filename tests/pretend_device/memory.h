// Memory of the pretend device. The host has its addresses, but cannot access the memory.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <string>
#include <vector>

#include "tests/pretend_device/clock.h"

namespace troika::pretend {

// Bytes [begin, end) of device memory that a piece of work reads or writes.
struct Access {
  const char* begin = nullptr;
  const char* end = nullptr;
  bool writes = false;
};

// Returns the address at which the device's operators access the memory at a device address. The
// memory is mapped twice, at a constant distance; the mapping at the device address cannot be
// accessed.
char* in_operator(const void* address);
bool is_device_address(const void* address);

// Allocates on the current device, like CUDA's caching allocator: a released block returns to the
// stream on which it was allocated, and the next allocation of this size on this stream gets it at
// once, even if other streams still use it, unless use_on() was called for them. A new block is
// filled with NaNs, in the order of its stream.
c10::Allocator& allocator();

// Marks the block at `address` as used on another stream. After its release it is allocated again
// only when the work that was queued on that stream before the release is done.
void use_on(const void* address, int stream);

// Records the accesses of the last piece of work of `now` on `stream`. Throws std::logic_error that
// names both pieces of work if an access overlaps an earlier one, at least one of the two writes,
// and nothing orders them. Called with the device's mutex held.
void note_accesses(const std::vector<Access>& accesses, int stream, const Clock& now,
                   const std::string& work);

// Bytes allocated and not released on a device.
size_t allocated_bytes(int device);

}  // namespace troika::pretend
