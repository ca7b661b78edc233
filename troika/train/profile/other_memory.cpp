#include "troika/train/profile/other_memory.h"

#include "troika/compat/torch.h"

namespace troika::train {

OtherMemory::OtherMemory(at::Device device) {
  constexpr int64_t kMoreThanCaches = int64_t{1} << 24;  // floats
  memory_ = at::zeros({device.is_cpu() ? kMoreThanCaches : 0}, at::kFloat);
}

void OtherMemory::fill_caches() {
  memory_.add_(1);
}

}  // namespace troika::train
