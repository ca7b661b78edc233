#include "troika/layout/buckets.h"

#include <algorithm>
#include <numeric>

namespace troika::layout {

namespace {

int64_t round_up(int64_t count, int64_t multiple) {
  return (count + multiple - 1) / multiple * multiple;
}

}  // namespace

std::vector<std::vector<size_t>> assign_buckets(std::span<const BucketItem> items,
                                                std::span<const size_t> order, int64_t first_bytes,
                                                int64_t bytes) {
  struct Open {
    int64_t kind;
    size_t index;
    int64_t bytes;
  };
  std::vector<std::vector<size_t>> buckets;
  std::vector<Open> open;
  for (const size_t i : order) {
    const auto& item = items[i];
    auto bucket = std::ranges::find(open, item.kind, &Open::kind);
    if (bucket == open.end()) {
      bucket = open.insert(open.end(), {item.kind, buckets.size(), 0});
      buckets.emplace_back();
    }
    bucket->bytes += item.bytes;
    buckets[bucket->index].push_back(i);
    if (bucket->bytes >= (bucket->index == 0 ? first_bytes : bytes)) open.erase(bucket);
  }
  return buckets;
}

int64_t item_offset(int64_t end, int64_t count, int64_t shard_multiple) {
  return count < shard_multiple ? end : round_up(end, shard_multiple);
}

int64_t padded_count(int64_t end, int64_t ranks, int64_t shard_multiple) {
  // A bucket of fewer elements has no item of at least shard_multiple elements.
  const int64_t multiple = end < shard_multiple ? 1 : shard_multiple;
  return round_up(end, ranks * std::lcm(kBlockMultiple, multiple));
}

}  // namespace troika::layout
