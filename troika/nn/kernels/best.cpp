#include "troika/nn/kernels/kernels.h"

namespace troika::nn::kernels {

const Kernels& best() {
#ifdef TROIKA_X86_KERNELS
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    return kAvx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) return kAvx2;
#endif
  return kBaseline;
}

}  // namespace troika::nn::kernels
