// Records the memory of parts of a pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "troika/base/memory.h"
#include "troika/train/memory/pass_memory.h"

namespace troika::train {

// Records peak and live bytes (base/memory.h) beyond those at its construction, part by part.
class MemoryWatch {
 public:
  MemoryWatch() : before_(memory::live()) { memory::restart_peak(); }

  // Ends a part.
  void note(const PassEvent& event) {
    parts_.push_back({event, static_cast<double>(memory::peak() - before_),
                      static_cast<double>(memory::live() - before_)});
    memory::restart_peak();
  }
  // Records the gradient's event, and frees the gradient before the next part begins.
  void take(size_t index, at::Tensor& parameter) {
    note({PassEvent::Kind::gradient, index});
    parameter.mutable_grad().reset();
    memory::restart_peak();
  }
  std::vector<PassPart> parts() && { return std::move(parts_); }

 private:
  const int64_t before_;
  std::vector<PassPart> parts_;
};

}  // namespace troika::train
