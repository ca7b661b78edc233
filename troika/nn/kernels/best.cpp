#include "troika/base/best_kernel.h"
#include "troika/nn/kernels/kernels.h"

namespace troika::nn::kernels {

const Kernels& best() {
  return *TROIKA_BEST_KERNEL(&kBaseline, &kAvx2, &kAvx512);
}

}  // namespace troika::nn::kernels
