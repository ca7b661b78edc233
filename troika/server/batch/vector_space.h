// Named vectors of one length and the operations on them: the interface of methods such as L-BFGS
// that need numbers of vectors only, so that they do not depend on where vectors are.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "troika/server/vector_algebra.h"

namespace troika::server {

class VectorSpace {
 public:
  virtual ~VectorSpace() = default;

  // Executes the operations in order and returns the numbers of those that have one, in order. May
  // block, and throws if the operations failed.
  virtual std::vector<double> compute(const VectorOperations& operations) = 0;
};

// Vectors of this process. Not thread-safe.
class LocalVectors : public VectorSpace {
 public:
  // `length`: the elements of each vector. A vector exists, with zeros, when it is first named.
  explicit LocalVectors(size_t length) : length_(length) {}

  std::vector<double> compute(const VectorOperations& operations) override;
  std::vector<double>& vector(const std::string& name);

 private:
  const size_t length_;
  std::map<std::string, std::vector<double>> vectors_;
};

}  // namespace troika::server
