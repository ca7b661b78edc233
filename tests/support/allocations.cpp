#include "tests/support/allocations.h"

#include <atomic>
#include <cerrno>
#include <cstddef>

// glibc's own functions, under the names that it exports for replacements.
extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* data, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);
}

namespace troika::testing_support {

namespace {

std::atomic<int64_t> g_of_process = 0;
thread_local int64_t t_of_thread = 0;

void count() {
  g_of_process.fetch_add(1, std::memory_order_relaxed);
  ++t_of_thread;
}

}  // namespace

int64_t allocations_of_process() {
  return g_of_process;
}

int64_t allocations_of_thread() {
  return t_of_thread;
}

}  // namespace troika::testing_support

extern "C" {

void* malloc(size_t bytes) {
  troika::testing_support::count();
  return __libc_malloc(bytes);
}

void* calloc(size_t count, size_t bytes) {
  troika::testing_support::count();
  return __libc_calloc(count, bytes);
}

void* realloc(void* data, size_t bytes) {
  troika::testing_support::count();
  return __libc_realloc(data, bytes);
}

void* memalign(size_t alignment, size_t bytes) {
  troika::testing_support::count();
  return __libc_memalign(alignment, bytes);
}

void* aligned_alloc(size_t alignment, size_t bytes) {
  return memalign(alignment, bytes);
}

int posix_memalign(void** data, size_t alignment, size_t bytes) {
  *data = memalign(alignment, bytes);
  return *data ? 0 : ENOMEM;
}
}
