// Reserves address ranges whose pages take memory only once they are written to.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>

namespace troika::memory {

// Its functions may be called from any thread.
class AddressSpace {
 public:
  // Reserves at least `bytes` bytes of zeros, aligned to a page. May exceed the machine's memory.
  // Throws Error(failure) when the address space is exhausted (128 TiB per process on x86-64).
  void* take(size_t bytes);
  // Releases a range that take() returned and returns its size in bytes. For any other pointer,
  // does nothing and returns nullopt.
  std::optional<int64_t> give_back(void* start);
  // Bytes that were taken and not yet given back.
  int64_t bytes() const { return bytes_; }

 private:
  std::mutex mutex_;
  std::unordered_map<void*, size_t> sizes_;
  std::atomic<int64_t> bytes_ = 0;
};

}  // namespace troika::memory
