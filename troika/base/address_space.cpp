#include "troika/base/address_space.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "troika/base/error.h"
#include "troika/base/text.h"

namespace troika::memory {

void* AddressSpace::take(size_t bytes) {
  void* const start = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) {
    throw Error(
        "base", ErrorKind::failure,
        {.what = fmt::format("no addresses for {}", human_bytes(static_cast<double>(bytes))),
         .got = fmt::format("{} beside {}", std::strerror(errno),
                            human_bytes(static_cast<double>(bytes_)))});
  }
  const std::lock_guard lock(mutex_);
  sizes_.emplace(start, bytes);
  bytes_ += static_cast<int64_t>(bytes);
  return start;
}

std::optional<int64_t> AddressSpace::give_back(void* start) {
  if (bytes_ == 0) return std::nullopt;
  size_t bytes = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto found = sizes_.find(start);
    if (found == sizes_.end()) return std::nullopt;
    bytes = found->second;
    sizes_.erase(found);
    bytes_ -= static_cast<int64_t>(bytes);
  }
  ::munmap(start, bytes);
  return static_cast<int64_t>(bytes);
}

}  // namespace troika::memory
