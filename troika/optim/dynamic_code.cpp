#include "troika/optim/dynamic_code.h"

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "troika/base/error.h"

namespace troika::optim {

namespace {

// What a code can stand for, signs aside, ascending.
std::vector<double> make_levels(bool has_sign) {
  constexpr int kDecades = 7;
  std::vector<double> levels{0.0};
  for (int decade = 0; decade < kDecades; ++decade) {
    const int count = 1 << (has_sign ? decade : decade + 1);
    for (int i = 0; i < count; ++i) {
      const double middle = 0.1 + 0.9 * (i + 0.5) / count;
      levels.push_back(std::pow(10.0, decade - kDecades + 1) * middle);
    }
  }
  levels.push_back(1.0);
  return levels;
}

}  // namespace

kernels::Code dynamic_code(bool has_sign) {
  const auto levels = make_levels(has_sign);
  const int count = static_cast<int>(levels.size());
  kernels::Code code{};
  code.zero = has_sign ? count - 2 : 0;
  for (int level = 0; level < count; ++level) {
    const auto value = static_cast<float>(levels[static_cast<size_t>(level)]);
    code.decode[code.zero + level] = value;
    if (has_sign && level < count - 1) code.decode[code.zero - level] = -value;
  }
  for (float& middle : code.middle) middle = std::numeric_limits<float>::infinity();
  for (int level = 0; level + 1 < count; ++level) {
    const auto i = static_cast<size_t>(level);
    code.middle[level] = static_cast<float>((levels[i] + levels[i + 1]) / 2);
  }
  int level = 0;
  for (int place = 0; place < kernels::kPlaces; ++place) {
    const auto first = std::bit_cast<float>((kernels::kFirstPlace + unsigned(place)) << 16);
    while (first > code.middle[level]) ++level;
    code.place[place] = level;
    const auto next = std::bit_cast<float>((kernels::kFirstPlace + unsigned(place) + 1) << 16);
    TROIKA_CHECK(next <= code.middle[level + 1] || place + 1 == kernels::kPlaces,
                 "one place has two borders");
  }
  return code;
}

}  // namespace troika::optim
