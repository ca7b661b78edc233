// The sum of several workers' pushes to one table in one step. Internal to the room.
#pragma once

#include <vector>

#include "troika/server/request.h"

namespace troika::server {

// `T` is float or double. The sum has every key that some push has. A key's values are added in the
// order of the pushes.
template <typename T>
class StepSum {
 public:
  // A key must have the same length in all pushes.
  explicit StepSum(const TableSpec& spec) : width_(spec.width), takes_runs_(spec.keys > 0) {}

  void add(const RequestBody& push);
  // Returns the sum as one push. Valid until the next call of add().
  RequestBody push() const;

 private:
  uint32_t length(size_t i) const { return width_ > 0 ? width_ : lengths_[i]; }
  bool has_keys_of(const RequestBody& push) const;

  const uint32_t width_;
  const bool takes_runs_;  // as Store::refusal()
  std::vector<Key> keys_;
  std::vector<uint32_t> lengths_;  // only for width 0
  std::vector<T> values_;
};

extern template class StepSum<float>;
extern template class StepSum<double>;

}  // namespace troika::server
