#include "troika/server/batch/vector_space.h"

#include "troika/server/vector_kernels.h"

namespace troika::server {

std::vector<double>& LocalVectors::vector(const std::string& name) {
  auto& vector = vectors_[name];
  vector.resize(length_);
  return vector;
}

std::vector<double> LocalVectors::compute(const VectorOperations& operations) {
  std::vector<double> numbers;
  for (const auto& [kind, x, y, factor] : operations) {
    auto& first = vector(x);
    std::span<const double> second;
    if (has_second(kind)) second = vector(y);
    if (changes_first(kind)) {
      execute<double>(kind, first, second, factor);
    } else {
      numbers.push_back(reduce<double>(kind, first, second));
    }
  }
  return numbers;
}

}  // namespace troika::server
