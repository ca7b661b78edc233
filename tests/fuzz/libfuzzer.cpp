// Lets libFuzzer drive a target.
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/fuzz.h"
#include "troika/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    troika::fuzz::run({reinterpret_cast<const char*>(data), size});
  } catch (const troika::Error&) {
  }
  return 0;
}
