// Picks the widest of a kernel's versions (troika_kernels() in CMake) that this processor has.
#pragma once

namespace troika::comm::kernels {

#ifdef TROIKA_X86_KERNELS
template <typename Kernel>
Kernel* choose(Kernel* baseline, Kernel* avx2, Kernel* avx512) {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    return avx512;
  }
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") ? avx2 : baseline;
}
#define TROIKA_BEST_KERNEL(name) \
  ::troika::comm::kernels::choose(name##_baseline, name##_avx2, name##_avx512)
#else
#define TROIKA_BEST_KERNEL(name) name##_baseline
#endif

}  // namespace troika::comm::kernels
