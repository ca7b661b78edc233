#include "troika/train/loop/run_setup.h"

#include "troika/compat/torch.h"

namespace troika::train {

int64_t trainable_count(const torch::nn::Module& module) {
  int64_t count = 0;
  for (const auto& [name, tensor] : nn::trained_parameters(module)) count += tensor.numel();
  return count;
}

}  // namespace troika::train
