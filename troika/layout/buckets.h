// Buckets: tensors that are contiguous in memory, so that one message carries them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace troika::layout {

// A tensor to be put into a bucket.
struct BucketItem {
  int64_t bytes = 0;
  int64_t kind = 0;  // type and device; all items of a bucket have the same kind
};

// Returns the indices of the items in each bucket. Items are assigned in the order of `order`, a
// permutation of their indices. One bucket is open per kind; it closes with the item that brings it
// to the limit, which is `first_bytes` for the very first bucket and `bytes` for the others (Li et
// al., VLDB 2020, section 3.2.3). The result depends only on the arguments, so equal arguments give
// equal buckets on all ranks.
std::vector<std::vector<size_t>> assign_buckets(std::span<const BucketItem> items,
                                                std::span<const size_t> order, int64_t first_bytes,
                                                int64_t bytes);

// A rank's block of a bucket starts at a multiple of this number of elements, for alignment to
// cache lines.
inline constexpr int64_t kBlockMultiple = 16;

// Returns the offset of an item of `count` elements in a bucket that already holds `end` elements.
// Items of at least `shard_multiple` elements start at a multiple of `shard_multiple`.
int64_t item_offset(int64_t end, int64_t count, int64_t shard_multiple);
// Returns the number of elements of a bucket of `end` elements, padded so that it splits into
// `ranks` equal blocks. Where a block boundary is within an item, it is a multiple of
// `shard_multiple`.
int64_t padded_count(int64_t end, int64_t ranks, int64_t shard_multiple);

}  // namespace troika::layout
