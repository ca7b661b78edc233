// The threads on which LibTorch computes.
#pragma once

#include <c10/util/FunctionRef.h>

#include <cstdint>

namespace troika::compat {

// Like at::parallel_for(): splits [begin, end) into at most at::get_num_threads() ranges of about
// equal length, at least `grain` elements each, calls `body` for each range on LibTorch's operator
// threads, and returns when all are done. A nested call runs on the calling thread alone. Throws
// what `body` threw. at::parallel_for() itself is compiled into its caller, and uses one thread if
// that is compiled without OpenMP; this function runs in LibTorch's own loops.
void parallel_for(int64_t begin, int64_t end, int64_t grain,
                  c10::function_ref<void(int64_t, int64_t)> body);

// Runs `body` once on each of the at::get_num_threads() threads, including this one, that run the
// operators which this thread calls. Returns when all are done. The threads live on between
// operators, but LibTorch may end some and start others later. Throws what `body` threw.
void on_each_compute_thread(c10::function_ref<void()> body);

}  // namespace troika::compat
