// Addresses that take memory only where they are written to.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>

namespace troika::memory {

// Any thread may call it.
class AddressSpace {
 public:
  // At least so many bytes, at the start of a page: zeros. They may be more than the machine has.
  // Throws Error(failure) where the system has no addresses left (a process has 128 TiB on x86-64).
  void* take(size_t bytes);
  // Gives back what take() gave, and says how many bytes that were; nothing, and does nothing, for
  // other memory.
  std::optional<int64_t> give_back(void* start);
  // Taken and not given back.
  int64_t bytes() const { return bytes_; }

 private:
  std::mutex mutex_;
  std::unordered_map<void*, size_t> sizes_;
  std::atomic<int64_t> bytes_ = 0;
};

}  // namespace troika::memory
