#include "troika/compat/compute_threads.h"

#include <ATen/TensorIterator.h>

#include <algorithm>

#include "troika/compat/torch.h"

namespace troika::compat {

void parallel_for(int64_t begin, int64_t end, int64_t grain,
                  c10::function_ref<void(int64_t, int64_t)> body) {
  if (begin >= end) return;
  const int64_t count = end - begin, least = std::max<int64_t>(1, grain);
  int64_t ranges = std::min<int64_t>(at::get_num_threads(), (count + least - 1) / least);
  if (at::in_parallel_region()) ranges = 1;
#ifdef __SANITIZE_THREAD__
  ranges = 1;  // ThreadSanitizer does not see that LibTorch's threads wait for each other
#endif
  if (ranges == 1) {
    body(begin, end);
    return;
  }
  // One byte per range: LibTorch distributes the bytes over its threads.
  const auto bytes = at::detail::empty_cpu({ranges}, at::TensorOptions(at::kByte));
  const auto* const first = static_cast<const char*>(bytes.data_ptr());
  auto iterator = at::TensorIteratorConfig()
                      .check_all_same_dtype(false)
                      .add_output(bytes)
                      .resize_outputs(false)
                      .build();
  const auto run = [&](char** data, const int64_t*, int64_t size, int64_t rows) {
    const int64_t own = data[0] - first;
    for (int64_t i = own; i < own + size * rows; ++i) {
      body(begin + i * count / ranges, begin + (i + 1) * count / ranges);
    }
  };
  iterator.for_each(run, /*grain_size=*/1);
}

void on_each_compute_thread(c10::function_ref<void()> body) {
  parallel_for(0, at::get_num_threads(), 1, [&](int64_t, int64_t) { body(); });
}

}  // namespace troika::compat
