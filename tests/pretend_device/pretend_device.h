// An accelerator for tests on machines that have none: LibTorch's device PrivateUse1 with the CPU's
// operators. A program that links this library has the device; Troika itself never links it.
//
// It detects these faults:
// - The host cannot access the device's memory: an access ends the process with a message.
// - Streams run as late as possible: work runs only when something waits for it, so results that
//   nothing waited for are missing. New memory is NaN, and so is host memory that is the target of
//   an unfinished copy.
// - If two pieces of work use the same memory, at least one of them writes, and nothing orders
//   them, an error is thrown, whenever they would have run. This includes memory that was released
//   and allocated again.
// - If the host writes to memory before a copy from this memory has run, an error is thrown.
// - Each device has a generator, which draws the same numbers as the CPU's with the same state.
//
// It does not have the speed, the kernels, the number types or the memory limit of a real device.
// Host threads count as ordered among each other; ThreadSanitizer finds their races.
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
