// The threads with which LibTorch computes.
#pragma once

#include <c10/util/FunctionRef.h>

#include <cstdint>

namespace troika::compat {

// at::parallel_for(): cuts [begin, end) into at most at::get_num_threads() ranges of at least
// `grain` elements, as equal as it goes, calls `body` for each, on the threads that share
// LibTorch's operators of the calling one, and returns when all are done. On the calling thread
// alone inside of such a call. Throws what `body` threw. at::parallel_for() itself is compiled into
// its caller, and runs on one thread where that is compiled without OpenMP; this runs in LibTorch's
// own loops.
void parallel_for(int64_t begin, int64_t end, int64_t grain,
                  c10::function_ref<void(int64_t, int64_t)> body);

// Runs `body` once on each of the at::get_num_threads() threads that share the operators which this
// thread calls, this one included, and returns when all are done. They live on between operators,
// but LibTorch may end some and start others later. Throws what `body` threw.
void on_each_compute_thread(c10::function_ref<void()> body);

}  // namespace troika::compat
