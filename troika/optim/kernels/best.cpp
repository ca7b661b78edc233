#include "troika/base/best_kernel.h"
#include "troika/optim/kernels/kernels.h"

namespace troika::optim::kernels {

const Kernels& best() {
  return *TROIKA_BEST_KERNEL(&kBaseline, &kAvx2, &kAvx512);
}

}  // namespace troika::optim::kernels
