#include "troika/data/subset.h"

#include <fmt/format.h>

#include <utility>

#include "troika/base/error.h"

namespace troika::data {

Subset::Subset(const Dataset& whole, int64_t part, int64_t parts)
    : whole_(whole), part_(part), parts_(parts) {
  if (part < 0 || part >= parts) {
    throw Error("data", ErrorKind::usage,
                {.what = "a part of a data set",
                 .got = fmt::format("number {} of {}", part, parts),
                 .expected = "a number from 0 to below the number of parts"});
  }
  set_name(whole.name());
}

Batch Subset::load(std::span<const int64_t> indices,
                   std::optional<uint64_t> augmentation_seed) const {
  std::vector<int64_t> there;
  there.reserve(indices.size());
  for (const int64_t index : indices) {
    TROIKA_CHECK(index >= 0 && index < size(), "a sample of the part");
    there.push_back(index * parts_ + part_);
  }
  auto batch = whole_.load(there, augmentation_seed);
  if (batch.samples.empty()) batch.samples = std::move(there);
  return batch;
}

}  // namespace troika::data
