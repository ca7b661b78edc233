// The maximum of any range of consecutive values.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <utility>
#include <vector>

namespace troika::plan {

// Keeps the maxima of all ranges whose length is a power of two: n log n numbers.
class RangeMaximum {
 public:
  RangeMaximum() = default;
  explicit RangeMaximum(std::vector<double> values) {
    if (values.empty()) return;
    rows_.push_back(std::move(values));
    for (size_t half = 1; 2 * half <= rows_.front().size(); half *= 2) {
      const auto& shorter = rows_.back();
      std::vector<double> row;
      for (size_t i = 0; i + half < shorter.size(); ++i) {
        row.push_back(std::max(shorter[i], shorter[i + half]));
      }
      rows_.push_back(std::move(row));
    }
  }

  // Returns the maximum of the values [begin, end). The range must not be empty.
  double of(size_t begin, size_t end) const {
    const auto row = static_cast<size_t>(std::bit_width(end - begin) - 1);
    const auto& maxima = rows_[row];
    return std::max(maxima[begin], maxima[end - (size_t{1} << row)]);
  }

 private:
  std::vector<std::vector<double>> rows_;  // by the exponent of the length
};

}  // namespace troika::plan
