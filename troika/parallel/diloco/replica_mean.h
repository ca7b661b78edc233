// Means over the replicas of a module, for outer steps.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

namespace troika::parallel {

// One mean at a time. All replicas make the same calls with tensors of the same shapes. Used by one
// thread.
class ReplicaMean {
 public:
  ReplicaMean() = default;
  virtual ~ReplicaMean() = default;
  ReplicaMean(const ReplicaMean&) = delete;
  ReplicaMean& operator=(const ReplicaMean&) = delete;

  // Begins to replace the tensors by their means, the same bits on all replicas; `changes` as the
  // codec loses them, `buffers` exactly. Floating types only. The tensors must not be used before
  // wait() has returned.
  virtual void start(const std::vector<at::Tensor>& changes,
                     const std::vector<at::Tensor>& buffers) = 0;
  // Blocks until the tensors are there; does nothing without start(). Throws the errors of the
  // communication.
  virtual void wait() = 0;
  // See ParameterStore::take_statistics(). Must not be called between start() and wait().
  virtual std::vector<std::pair<std::string, double>> statistics() const { return {}; }
};

}  // namespace troika::parallel
