// An accelerator for tests of machines that have none: LibTorch's device PrivateUse1, whose
// operators are the CPU's. To link the library is to have the device; the product never does.
//
// It shows these faults:
// - The host cannot touch its memory: an access ends the process, and says why.
// - Its streams run as late as they may: nothing runs before somebody waits for it, so what was not
//   waited for is seen without it. New memory is NaN, and so is memory of the host under a copy
//   that has not been waited for.
// - Two pieces of work that use the same memory, one of which writes, throw where nothing orders
//   them, whatever the times would have been: also where memory is released and allocated again.
// - A host that writes to memory before a copy from there has happened is told so.
// - Each device has a generator, which draws what the CPU's draws from the same state.
//
// It does not show speed, kernels and number types of a real device, or running out of its memory.
// Host threads count as ordered among each other; a race of theirs is ThreadSanitizer's to find.
#pragma once

#include <c10/core/Device.h>

#include "tests/pretend_device/generator.h"
#include "tests/pretend_device/memory.h"
#include "tests/pretend_device/streams.h"

namespace troika::pretend {

inline c10::Device device(int index) {
  return {c10::kPrivateUse1, static_cast<c10::DeviceIndex>(index)};
}

}  // namespace troika::pretend
