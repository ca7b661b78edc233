#include "troika/compat/tensor_memory.h"

#include <c10/core/CPUAllocator.h>
#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <limits>

#include "troika/base/address_space.h"
#include "troika/base/error.h"
#include "troika/base/machine_memory.h"
#include "troika/base/memory.h"
#include "troika/base/text.h"
#include "troika/compat/torch.h"

namespace troika::compat {

namespace {

// LibTorch's own allocator, which calls malloc(); malloc() knows the size of a freed block.
c10::Allocator* g_allocator = nullptr;

int64_t size_of(void* data) {
  return static_cast<int64_t>(::malloc_usable_size(data));
}

// The addresses of tensors without memory: those that are counted, and those that are not.
memory::AddressSpace& addresses() {
  static auto* one = new memory::AddressSpace;  // tensors may outlive all other objects
  return *one;
}
memory::AddressSpace& uncounted() {
  static auto* one = new memory::AddressSpace;
  return *one;
}

thread_local bool without_memory = false;
thread_local bool without_count = false;

void give_back(void* data) {
  if (const auto bytes = addresses().give_back(data)) {
    memory::add(-*bytes);
    return;
  }
  if (uncounted().give_back(data)) return;
  memory::add(-size_of(data));
  g_allocator->raw_deleter()(data);
}

// Refuses allocations for which there is no memory.
class Guard {
 public:
  explicit Guard(std::string hint) : hint_(std::move(hint)) {}

  void require_room(int64_t bytes) {
    const int64_t live = memory::live() - addresses().bytes();
    const int64_t wanted = live + bytes;
    if (wanted < next_look_) return;
    const auto left = memory::available();
    if (!left) {
      next_look_ = std::numeric_limits<int64_t>::max();
      return;
    }
    // Tensors that were never written to use no memory yet, and malloc() holds freed memory.
    const int64_t untouched = std::max<int64_t>(0, live - memory::resident());
    const auto kept = static_cast<int64_t>(::mallinfo2().fordblks);
    const int64_t room = left->bytes + kept - untouched;
    if (bytes > room) refuse(bytes, std::max<int64_t>(0, room), left->limit);
    next_look_ = wanted + std::max(kLeastStep, (room - bytes) / 8);
  }

 private:
  static constexpr int64_t kLeastStep = int64_t{1} << 20;

  [[noreturn]] void refuse(int64_t bytes, int64_t room, const std::string& limit) const {
    throw Error("compat", ErrorKind::failure,
                {.what = fmt::format("no memory for a tensor of {}",
                                     human_bytes(static_cast<double>(bytes))),
                 .got = fmt::format("{} left of {}, beside {} of tensors of this process",
                                    human_bytes(static_cast<double>(room)), limit,
                                    human_bytes(static_cast<double>(memory::live()))),
                 .hint = hint_});
  }

  const std::string hint_;
  std::atomic<int64_t> next_look_ = 0;  // bytes of live tensors at which the system is queried next
};

std::atomic<Guard*> g_guard = nullptr;

class Counting final : public c10::Allocator {
 public:
#if TROIKA_TORCH_VERSION >= 203
  c10::DataPtr allocate(size_t bytes) override {
    return counted(bytes);
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
#else
  c10::DataPtr allocate(size_t bytes) const override {
    return counted(bytes);
  }
#endif
  c10::DeleterFnPtr raw_deleter() const override {
    return &give_back;
  }

 private:
  static c10::DataPtr counted(size_t bytes) {
    if (without_memory && bytes >= static_cast<size_t>(kLeastWithoutMemory)) {
      void* const start = (without_count ? uncounted() : addresses()).take(bytes);
      if (!without_count) memory::add(static_cast<int64_t>(bytes));
      return {start, start, &give_back, c10::Device(c10::DeviceType::CPU)};
    }
    Guard* const guard = g_guard;
    if (guard && !without_memory) guard->require_room(static_cast<int64_t>(bytes));
    auto result = g_allocator->allocate(bytes);
    memory::add(size_of(result.get()));
    TROIKA_CHECK(result.compare_exchange_deleter(g_allocator->raw_deleter(), &give_back),
                 "LibTorch's memory has a deleter of its own");
    if (without_memory && bytes > 0) std::memset(result.get(), 0, bytes);
    return result;
  }
};

}  // namespace

void keep_freed_memory() {
  // The largest threshold that malloc() would reach by itself.
  ::mallopt(M_MMAP_THRESHOLD, 32 << 20);
  ::mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
}

void count_tensor_memory() {
  static const bool once = [] {
    static Counting counting;
    g_allocator = c10::GetCPUAllocator();
    c10::SetCPUAllocator(&counting);
    return true;
  }();
  static_cast<void>(once);
}

bool counts_tensor_memory() {
  return g_allocator != nullptr;
}

bool is_counted(const at::Tensor& tensor) {
  return tensor.numel() == 0 || tensor.storage().data_ptr().get_deleter() == &give_back;
}

void give_tensors_no_memory(bool on, bool counts) {
  count_tensor_memory();
  without_memory = on;
  without_count = on && !counts;
}

void refuse_tensors_beyond_memory(const std::string& hint) {
  count_tensor_memory();
  static Guard guard(hint);
  g_guard = &guard;
}

}  // namespace troika::compat
