#include "troika/parallel/bucket_order.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "troika/base/error.h"
#include "troika/compat/autograd.h"  // completes GradientSlot
#include "troika/compat/torch.h"

namespace troika::parallel {

std::vector<size_t> first_order(const std::vector<GradientSlot>& slots,
                                const std::vector<std::string>& names) {
  std::vector<size_t> order(slots.size());
  std::iota(order.rbegin(), order.rend(), 0);
  if (names.empty()) return order;
  const auto place = [&](size_t i) {
    return std::find(names.begin(), names.end(), slots[i].name) - names.begin();
  };
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return place(a) < place(b); });
  const bool complete =
      names.size() == slots.size() &&
      std::equal(order.begin(), order.end(), names.begin(),
                 [&](size_t i, const auto& name) { return slots[i].name == name; });
  if (complete) return order;
  throw Error("parallel", ErrorKind::usage,
              {.what = "bucket_order does not fit the module",
               .got = fmt::format("{}", fmt::join(names, ", ")),
               .expected = "each parameter that requires a gradient once, as order() gave them"});
}

std::vector<std::vector<size_t>> members_of(const std::vector<GradientSlot>& slots,
                                            const std::vector<std::vector<std::string>>& buckets) {
  std::vector<std::vector<size_t>> result;
  for (const auto& names : buckets) {
    auto& members = result.emplace_back();
    for (const auto& name : names) {
      const auto slot = std::find_if(slots.begin(), slots.end(),
                                     [&](const GradientSlot& s) { return s.name == name; });
      TROIKA_CHECK(slot != slots.end(), "no parameter " + name);
      members.push_back(static_cast<size_t>(slot - slots.begin()));
    }
  }
  return result;
}

}  // namespace troika::parallel
