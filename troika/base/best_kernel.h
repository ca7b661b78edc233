// Selects the version of a kernel with the widest SIMD instructions that this processor supports.
// troika_kernels() in CMake compiles the versions.
#pragma once

namespace troika {

#ifdef TROIKA_X86_KERNELS
template <typename Kernel>
Kernel* best_kernel(Kernel* baseline, Kernel* avx2, Kernel* avx512) {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    return avx512;
  }
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") ? avx2 : baseline;
}
#define TROIKA_BEST_KERNEL(baseline, avx2, avx512) ::troika::best_kernel(baseline, avx2, avx512)
#else
// Only the baseline version was compiled, so the macro must not name the others.
#define TROIKA_BEST_KERNEL(baseline, avx2, avx512) (baseline)
#endif

}  // namespace troika
