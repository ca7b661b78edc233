// Memory that takes the place of a model's in caches.
#pragma once

#include <ATen/core/Tensor.h>

namespace troika::train {

// Larger than the caches of a core. On devices other than the CPU it is empty.
class OtherMemory {
 public:
  explicit OtherMemory(at::Device device);

  // Writes all of it, so that the calling thread finds no earlier memory in the core's caches.
  void fill_caches();

 private:
  at::Tensor memory_;
};

}  // namespace troika::train
