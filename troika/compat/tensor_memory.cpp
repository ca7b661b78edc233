#include "troika/compat/tensor_memory.h"

#include <c10/core/CPUAllocator.h>
#include <malloc.h>

#include <cstdint>

#include "troika/base/error.h"
#include "troika/base/memory.h"
#include "troika/compat/torch.h"

namespace troika::compat {

namespace {

// LibTorch's own, which calls malloc(): that knows how long a block is when it is given back.
c10::Allocator* g_allocator = nullptr;

int64_t size_of(void* data) {
  return static_cast<int64_t>(::malloc_usable_size(data));
}

void give_back(void* data) {
  memory::add(-size_of(data));
  g_allocator->raw_deleter()(data);
}

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
    auto result = g_allocator->allocate(bytes);
    memory::add(size_of(result.get()));
    TROIKA_CHECK(result.compare_exchange_deleter(g_allocator->raw_deleter(), &give_back),
                 "LibTorch's memory has a deleter of its own");
    return result;
  }
};

}  // namespace

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

}  // namespace troika::compat
