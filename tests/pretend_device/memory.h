// Memory of the pretend device: the host can hold its addresses, and cannot touch what lies there.
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

// Where the device's operators find what lies at a device address. The two mappings are apart by a
// constant; the one at the device address has no rights.
char* in_operator(const void* address);
bool is_device_address(const void* address);

// Allocates on the current device, as CUDA's caching allocator does: a released block goes back to
// the stream it was allocated on, and the next allocation of its size there gets it again, at once,
// whatever other streams do with it, unless use_on() has told of them. A block starts as NaNs,
// which are written in the order of its stream.
c10::Allocator& allocator();

// Marks the block at `address` as used on another stream: after its release it is allocated again
// only when the work queued there until then is done.
void use_on(const void* address, int stream);

// Notes the accesses of the piece of work that `now` ends with on `stream`. Throws
// std::logic_error, naming both pieces of work, where one overlaps an earlier access, one of the
// two writes, and nothing orders them. Called with the device's mutex held.
void note_accesses(const std::vector<Access>& accesses, int stream, const Clock& now,
                   const std::string& work);

// Bytes allocated and not released on a device.
size_t allocated_bytes(int device);

}  // namespace troika::pretend
